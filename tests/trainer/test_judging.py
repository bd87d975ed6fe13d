"""Scoring in the cycle: when the judge is asked, and what becomes of groups that it does not answer for."""

import time
from collections.abc import Iterator

import pytest

from storage import coordination, groups, judging, sessions
from storage.states import GroupState
from tests.storage.recorded import a_reward
from tests.trainer.fake_judge import FakeJudge, by_length, says, scores, served
from tests.trainer.workshop import Workshop
from trainer.judge import Judge
from trainer.judging import NO_JUDGE


@pytest.fixture
def fake() -> Iterator[FakeJudge]:
    with served(FakeJudge()) as judge:
        yield judge


@pytest.fixture
def judge(fake: FakeJudge) -> Iterator[Judge]:
    judge = Judge(fake.url, "judge-1", None)
    yield judge
    judge.close()


@pytest.fixture(autouse=True)
def _heart(workshop: Workshop) -> None:
    coordination.beat(workshop.db, time.time())


def said(workshop: Workshop) -> coordination.TrainerState:
    found = coordination.trainer(workshop.db)
    assert found is not None
    return found


def test_without_a_judge_the_groups_with_rewards_go_on(workshop: Workshop) -> None:
    unjudged = workshop.group(workshop.many([None, 1.0]))
    rewarded = workshop.group(workshop.many([0.0, 1.0], "other"))
    workshop.cycle().turn()
    assert groups.get(workshop.db, unjudged.id).state is GroupState.READY
    assert groups.get(workshop.db, rewarded.id).state is GroupState.TRAINED
    assert said(workshop).problem == NO_JUDGE
    assert "1 that wait for rewards of their clients, for there is no judge" in (said(workshop).waits_for or "")


def test_a_judge_that_does_not_answer_is_asked_once_a_turn(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    waiting = [workshop.group(workshop.many([None, None], name)) for name in ("one", "two")]
    rewarded = workshop.group(workshop.many([0.0, 1.0], "three"))
    fake.answers = [(401, "bad key")]
    cycle = workshop.cycle(judge)
    cycle.turn()
    assert len(fake.requests) == 1
    assert [groups.get(workshop.db, group.id).state for group in waiting] == [GroupState.READY] * 2
    assert groups.get(workshop.db, rewarded.id).state is GroupState.TRAINED
    assert "answered with 401: bad key" in (said(workshop).problem or "")
    # It answers again.
    fake.answers = [says(scores(0, 1))]
    cycle.turn()
    assert said(workshop).problem is None
    assert [groups.get(workshop.db, group.id).state for group in waiting] == [GroupState.TRAINED] * 2


@pytest.mark.parametrize("status", [429, 500, 504])
def test_a_group_that_the_judge_cannot_answer_starves_nobody(
    workshop: Workshop, fake: FakeJudge, judge: Judge, status: int
) -> None:
    stuck = workshop.group([workshop.closed("a"), workshop.closed("bb")])
    cycle = workshop.cycle(judge, trainer={"groups": 9})
    for turn in range(8):
        assert groups.get(workshop.db, stuck.id).state is GroupState.READY
        behind = workshop.group([workshop.closed(f"c{turn}"), workshop.closed(f"dd{turn}")])
        fake.answers = [(status, "no"), says(scores(0, 1))]
        if turn:
            fake.answers.reverse()  # the stuck one comes behind all others
        cycle.turn()
        assert groups.get(workshop.db, behind.id).state is GroupState.SCORED
        assert f"answered with {status}: no" in (said(workshop).problem or "")
    found = groups.get(workshop.db, stuck.id)
    reason = f"judge failed: the judge at {fake.url}/chat/completions answered with {status}: no"
    assert (found.state, found.reason) == (GroupState.SKIPPED, reason)
    assert {workshop.outcome(member.session) for member in stuck.members} == {("skipped", reason, None)}


def test_a_group_alone_that_the_judge_cannot_answer_ends(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    stuck = workshop.group([workshop.closed("a"), workshop.closed("bb")])
    fake.answers = [(500, "no")]
    cycle = workshop.cycle(judge)
    for _ in range(8):
        assert groups.get(workshop.db, stuck.id).state is GroupState.READY
        cycle.turn()
    assert groups.get(workshop.db, stuck.id).state is GroupState.SKIPPED


def test_a_judge_that_answers_nobody_costs_no_group(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    waiting = [workshop.group([workshop.closed(f"a{n}"), workshop.closed(f"bb{n}")]) for n in range(2)]
    fake.answers = [(503, "down for the night")]
    cycle = workshop.cycle(judge)
    for _ in range(5):
        cycle.turn()
    assert [groups.get(workshop.db, group.id).state for group in waiting] == [GroupState.READY] * 2
    fake.answers = [says(scores(0, 1))]
    cycle.turn()
    assert [groups.get(workshop.db, group.id).state for group in waiting] == [GroupState.TRAINED] * 2


def test_a_refused_group_does_not_stop_the_next(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    first = workshop.group([workshop.closed("a"), workshop.closed("bb")])
    second = workshop.group([workshop.closed("c"), workshop.closed("dd")])
    fake.answers = [says("no"), says("no"), says(scores(0, 1))]
    workshop.cycle(judge, trainer={"groups": 5}).turn()
    assert groups.get(workshop.db, first.id).state is GroupState.SKIPPED
    assert groups.get(workshop.db, second.id).state is GroupState.SCORED


def test_the_clients_rewards_are_waited_for_before_a_judge_is_asked(
    workshop: Workshop, fake: FakeJudge, judge: Judge
) -> None:
    members = workshop.many([0.0, 0.5, 0.75, None])
    fake.decide = by_length
    cycle = workshop.cycle(judge, reward={"wait": 2 * time.time()})
    cycle.turn()
    assert (groups.states(workshop.db), fake.requests) == ({"ready": 1}, [])
    last = max(sessions.get(workshop.db, member.key).closed_at or 0.0 for member in members)
    assert cycle.rewards_due == pytest.approx(last + 2 * time.time(), abs=60)
    workshop.reward(a_reward(members[3].session_id, 1.0))
    workshop.take_in()
    cycle.turn()
    assert (groups.states(workshop.db), fake.requests, cycle.rewards_due) == ({"trained": 1}, [], None)


def test_a_run_that_was_asked_for_waits_for_no_rewards(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    workshop.many([0.0, 0.5, 0.75, None])
    fake.decide = by_length
    workshop.ask("another")
    cycle = workshop.cycle(judge, reward={"wait": 2 * time.time()})
    cycle.turn()
    assert groups.states(workshop.db) == {"ready": 1}
    workshop.ask("task")
    cycle.turn()
    assert len(fake.requests) == 1


def test_a_scenario_is_judged_by_its_own_rubric(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    for name in ("poems", "sums"):
        workshop.group(workshop.many([None, None], name))
    fake.decide = by_length
    fake.requests.clear()
    rubrics = {"rubric": "Be right.", "rubrics": {"poems": "Rhyme."}}
    workshop.cycle(judge, judge=rubrics, trainer={"groups": 9}).turn()
    told = [request["messages"][0]["content"] for request in fake.requests]
    assert ["Rhyme." in one for one in told] == [True, False]
    assert ["Be right." in one for one in told] == [False, True]


def test_a_group_that_was_cut_says_so(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    group = workshop.group([workshop.closed(name, scenario="task") for name in ("a" * 250, "b" * 240)])
    asked = "UPDATE calls SET input = json_array(json_object('role', 'user', 'content', ?))"
    workshop.db.execute(asked, ("go " * 3000,))
    fake.decide = by_length
    workshop.cycle(judge, judge={"context": 2048}, trainer={"groups": 9}).turn()
    cut = groups.get(workshop.db, group.id).judge_cut
    assert cut is not None
    assert (cut["texts"], cut["messages"]) == (1, 0)
    assert cut["tokens"] > 1500
    assert groups.rows(workshop.db, {}, 9, None)[0]["judge_cut"] == cut


def test_a_silence_outlives_a_restart(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    stuck = workshop.group(workshop.many([None, None]))
    fake.answers = [(500, "no")]
    for _ in range(7):
        workshop.cycle(judge).turn()
    assert groups.get(workshop.db, stuck.id).judge_silences == 7
    workshop.cycle(judge).turn()
    assert groups.get(workshop.db, stuck.id).state is GroupState.SKIPPED


@pytest.mark.parametrize(("after", "least", "most"), [(None, 100, 101), ("1800", 1799, 1801), ("99999", 3599, 3601)])
def test_a_group_is_asked_for_again_when_it_is_due(
    workshop: Workshop, fake: FakeJudge, judge: Judge, after: str | None, least: float, most: float
) -> None:
    waiting = workshop.group(workshop.many([None, None]))
    fake.answers = [(429, "slower")]
    fake.retry_after = after
    fake.requests.clear()
    cycle = workshop.cycle(judge, judge={"backoff": 100})
    began = time.time()
    for _ in range(3):
        cycle.turn()
    due = groups.get(workshop.db, waiting.id).judge_due
    assert due is not None
    assert least <= due - began <= most + time.time() - began
    assert (len(fake.requests), cycle.due) == (1, due)
    assert f"for group {waiting.id}: it is asked again at " in (said(workshop).problem or "")
    workshop.db.execute("UPDATE groups SET judge_due = 1")
    cycle.turn()
    waits = (groups.get(workshop.db, waiting.id).judge_due or 0) - time.time()
    assert (len(fake.requests), waits > 190) == (2, True)


def test_a_judge_that_answers_nobody_is_soon_left_alone_and_starves_nobody(
    workshop: Workshop, fake: FakeJudge, judge: Judge
) -> None:
    for name in "abcde":
        workshop.group(workshop.many([None, None], name))
    rewarded = workshop.group(workshop.many([0.0, 1.0], "rewarded"))
    fake.answers = [(503, "down")]
    cycle = workshop.cycle(judge, trainer={"groups": 9})
    for turn in range(3):
        fake.requests.clear()
        cycle.turn()
        assert len(fake.requests) == 2, turn
    assert groups.get(workshop.db, rewarded.id).state is GroupState.SCORED
    tried = workshop.db.number("SELECT count(*) FROM groups WHERE judge_due IS NOT NULL")
    assert tried == 5, "each had its turn"


def test_what_was_judged_is_free_and_deleted_members_are_not_remembered(
    workshop: Workshop, fake: FakeJudge, judge: Judge
) -> None:
    def ready(scenario: str, answers: str) -> list[float | None]:
        group = workshop.group(workshop.many([None] * len(answers), scenario))
        for member, answer in zip(group.members, answers, strict=True):
            output = f'[{{"role": "assistant", "content": "{answer}"}}]'
            workshop.db.execute("UPDATE calls SET input = '[]', output = ? WHERE session = ?", (output, member.session))
        workshop.cycle(judge, trainer={"groups": 99}).turn()
        found = groups.get(workshop.db, group.id)
        assert found.judge == "judge-1"
        return [found.judge_tokens, *(member.reward for member in found.members)]

    fake.answers = [says(scores(0.1, 0.2, 0.9), tokens=30), says(scores(0.3, 0.4, 0.5), tokens=7)]
    assert ready("one", "xyz") == [30, 0.1, 0.2, 0.9]
    assert ready("two", "zxyz") == [0, 0.9, 0.1, 0.2, 0.9]
    workshop.db.execute("DELETE FROM group_members WHERE reward = 0.2")
    assert ready("three", "xyz") == [7, 0.3, 0.4, 0.5]
    fake.answers = [says(scores(0.6, 0.7), tokens=9)]
    assert ready("four", "xy") == [9, 0.6, 0.7], "another group"


def test_the_days_budget_stops_the_judge_and_says_so(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    first, second = (workshop.group(workshop.many([None, None], name)) for name in ("one", "two"))
    rewarded = workshop.group(workshop.many([0.0, 1.0], "three"))
    fake.answers = [says("no", tokens=60), says(scores(0, 1), tokens=50)]
    cycle = workshop.cycle(judge, judge={"tokens_per_day": 100}, trainer={"groups": 9})
    cycle.turn()
    found = [groups.get(workshop.db, group.id) for group in (first, second, rewarded)]
    assert [one.state for one in found] == [GroupState.SCORED, GroupState.READY, GroupState.SCORED]
    assert [one.judge_tokens for one in found] == [110, 0, 0], "an answer that could not be used costs, too"
    assert "the judge's budget is spent: 110 tokens today of 100" in (said(workshop).problem or "")
    workshop.db.execute("UPDATE judge_spending SET day = '2020-01-01'")
    cycle.turn()
    assert groups.get(workshop.db, second.id).state is GroupState.SCORED
    assert judging.spent(workshop.db) == 160


def test_what_was_spent_in_vain_is_counted(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    refused = workshop.group(workshop.many([None, None]))
    fake.answers = [says("no", tokens=3), says("never", tokens=4), says("no", tokens=5), (503, "down")]
    workshop.cycle(judge).turn()
    assert groups.get(workshop.db, refused.id).judge_tokens == 7
    broken_off = workshop.group(workshop.many([None, None], "other"))
    workshop.cycle(judge).turn()
    assert groups.get(workshop.db, broken_off.id).judge_tokens == 5
    assert (judging.spent(workshop.db), judging.spent(workshop.db, time.time())) == (12, 12)


def test_a_judge_that_is_down_is_left_alone_for_longer_each_time(
    workshop: Workshop, fake: FakeJudge, judge: Judge
) -> None:
    for name in "ab":
        workshop.group(workshop.many([None, None], name))
    fake.answers = [(503, "down")]
    cycle = workshop.cycle(judge, judge={"backoff": 1000})
    cycle.turn()
    assert 900 < (cycle.due or 0.0) - time.time() <= 1000
    fake.requests.clear()
    workshop.db.execute("UPDATE groups SET judge_due = 1")
    cycle.turn()
    assert fake.requests == []
    assert "the judge answered for no group: it is asked again at " in (said(workshop).problem or "")
    assert workshop.db.number("SELECT sum(judge_silences) FROM groups") == 0, "which is no fault of theirs"


def test_of_several_groups_that_wait_one_that_is_due_alone_is_not_to_blame(
    workshop: Workshop, fake: FakeJudge, judge: Judge
) -> None:
    first, second = (workshop.group(workshop.many([None, None], name)) for name in "ab")
    fake.answers = [(503, "down")]
    for due in (first, second) * 5:
        workshop.db.execute("UPDATE groups SET judge_due = CASE id WHEN ? THEN 1 ELSE 1e10 END", (due.id,))
        workshop.cycle(judge).turn()
    assert [groups.get(workshop.db, one.id).state for one in (first, second)] == [GroupState.READY] * 2
