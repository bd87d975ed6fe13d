"""What becomes of a group that is ready: scored, or skipped with a reason, or left until the judge answers."""

import time
from collections.abc import Iterator

import pytest

from storage import groups
from storage import rewards as given
from storage.states import GroupState
from storage.types import GroupId
from tests.storage.recorded import a_reward, call_start, capture
from tests.trainer.fake_judge import FakeJudge, by_length, says, scores, served
from tests.trainer.workshop import Workshop, score
from trainer import question, scoring
from trainer.errors import JudgeSilent
from trainer.judge import Judge

SPREAD = 0.05


@pytest.fixture
def fake() -> Iterator[FakeJudge]:
    with served(FakeJudge()) as judge:
        yield judge


@pytest.fixture
def judge(fake: FakeJudge) -> Iterator[Judge]:
    judge = Judge(fake.url, "judge-1", None)
    yield judge
    judge.close()


def state(workshop: Workshop, group: GroupId) -> tuple[GroupState, str | None, str | None, int]:
    found = groups.get(workshop.db, group)
    return found.state, found.reason, found.judge, found.judge_tokens


def rewards(workshop: Workshop, group: GroupId) -> list[float | None]:
    return [member.reward for member in groups.get(workshop.db, group).members]


def test_where_every_client_gave_a_reward_no_judge_is_asked(workshop: Workshop) -> None:
    group = workshop.group(workshop.many([0.25, 1.0, -3.0]))
    assert score(workshop.db, group, None, SPREAD)
    assert state(workshop, group.id) == (GroupState.SCORED, None, "the clients' own rewards", 0)
    assert rewards(workshop, group.id) == [0.25, 1.0, -3.0]
    assert [workshop.outcome(member.session) for member in group.members] == [None] * 3


def test_a_weighted_combination_is_no_absolute_reward(workshop: Workshop) -> None:
    group = workshop.group(workshop.many([0.25, 1.0]))
    assert scoring.by_clients(workshop.db, group, SPREAD, {"reward": 2.0})
    assert state(workshop, group.id)[2] == groups.WEIGHTED
    assert rewards(workshop, group.id) == [-2.0, 2.0]


def test_the_last_reward_counts(workshop: Workshop) -> None:
    members = workshop.many([0.25, 1.0])
    workshop.reward(a_reward(members[0].session_id, 0.75, source="admin"))
    workshop.take_in()
    group = workshop.group(members)
    assert score(workshop.db, group, None, SPREAD)
    assert rewards(workshop, group.id) == [0.75, 1.0]


def test_a_reward_that_comes_when_the_group_is_scored_is_kept_and_changes_nothing(workshop: Workshop) -> None:
    members = workshop.many([0.25, 1.0])
    group = workshop.group(members)
    assert score(workshop.db, group, None, SPREAD)
    workshop.reward(a_reward(members[0].session_id, 9.0, created_at=time.time() + 1))
    workshop.take_in()
    assert rewards(workshop, group.id) == [0.25, 1.0]
    shown = given.rows(workshop.db, members[0].key)
    assert [(one["value"], one["late"]) for one in shown] == [(0.25, False), (9.0, True)]


def test_only_rewards_of_the_plain_name_count(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    members = workshop.many([0.25, 1.0])
    other = workshop.closed("other", scenario="task")
    for session in (members[0], other):
        workshop.reward(a_reward(session.session_id, 99.0, name="style"))
    workshop.take_in()
    group = workshop.group(members)
    assert score(workshop.db, group, None, SPREAD)
    assert rewards(workshop, group.id) == [0.25, 1.0], "a later one of another name changes nothing"
    without = workshop.group([other, *workshop.many([1.0])])
    assert not score(workshop.db, without, None, SPREAD), "it counts as having none"
    fake.decide = by_length
    assert score(workshop.db, without, judge, SPREAD)
    assert state(workshop, without.id)[2] == "judge-1"


def test_where_one_has_none_the_judge_scores_all(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    members = workshop.many([0.9, None, 0.1])
    group = workshop.group(members)
    fake.answers = [says(scores(0.1, 0.5, 1.0), tokens=77)]
    assert score(workshop.db, group, judge, SPREAD)
    assert state(workshop, group.id) == (GroupState.SCORED, None, "judge-1", 77)
    assert rewards(workshop, group.id) == [0.1, 0.5, 1.0]
    found = groups.get(workshop.db, group.id)
    assert found.members[2].explanation == "because of 1.0"
    seen = scoring.seen(workshop.db, found, judge, question.Terms())
    asked = question.question(seen.attempts, question.Terms().instruction, found.judge_seed or 0)
    assert asked.messages == fake.requests[0]["messages"], "the recorded seed gives the question again"


def test_the_judge_sees_the_whole_conversation(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    members = []
    for name in ("a", "b"):
        ask = {"role": "user", "content": "go"}
        first = workshop.turn(call_start(name), [ask], f"{name} looks", capture([1], [2]))
        answer = {"role": "assistant", "content": f"{name} looks"}
        more = {"role": "user", "content": "and?"}
        workshop.turn(call_start(name), [ask, answer, more], f"{name} is done", capture([1, 2, 3], [4]))
        workshop.close(name)
        assert first.identity.session_id == name
    workshop.take_in()
    members = [workshop.session("a"), workshop.session("b")]
    fake.answers = [says(scores(0, 1))]
    assert score(workshop.db, workshop.group(members), judge, SPREAD)
    document = fake.document()
    assert document["context"] == [{"role": "user", "content": "go"}]
    shown = [[message["content"] for message in one["messages"]] for one in document["trajectories"]]
    assert sorted(shown) == [["a looks", "and?", "a is done"], ["b looks", "and?", "b is done"]]


def test_without_a_judge_the_group_waits(workshop: Workshop) -> None:
    group = workshop.group(workshop.many([0.9, None]))
    assert not score(workshop.db, group, None, SPREAD)
    assert state(workshop, group.id) == (GroupState.READY, None, None, 0)


@pytest.mark.parametrize(
    ("values", "spread", "reason"),
    [
        ([0.5, 0.5, 0.5], SPREAD, "no variance: best and worst reward differ by 0"),
        ([0.5, 0.54], SPREAD, "no variance: best and worst reward differ by 0.04"),
        ([0.5, 0.5], 0.0, "no variance: best and worst reward differ by 0"),
    ],
)
def test_a_group_that_teaches_nothing_is_skipped(
    workshop: Workshop, values: list[float], spread: float, reason: str
) -> None:
    group = workshop.group(workshop.many(values))
    assert score(workshop.db, group, None, spread)
    assert state(workshop, group.id)[:2] == (GroupState.SKIPPED, reason)
    assert rewards(workshop, group.id) == values
    assert {workshop.outcome(member.session) for member in group.members} == {("skipped", reason, None)}


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.5, 0.5]])
def test_what_is_for_evaluation_is_scored_and_never_trained(workshop: Workshop, values: list[float]) -> None:
    group = workshop.group(workshop.many(values, split="eval"))
    assert score(workshop.db, group, None, SPREAD)
    assert state(workshop, group.id)[0] is GroupState.EVAL
    assert rewards(workshop, group.id) == values
    assert {workshop.outcome(member.session) for member in group.members} == {("evaluated", None, None)}


def test_an_answer_that_cannot_be_used_skips_the_group(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    group = workshop.group(workshop.many([None, None], split="eval"))
    fake.answers = [says("I would rather not.")]
    assert score(workshop.db, group, judge, SPREAD)
    reason = "judge failed: there is no JSON in it: 'I would rather not.'"
    assert state(workshop, group.id)[:2] == (GroupState.SKIPPED, reason)
    assert {workshop.outcome(member.session) for member in group.members} == {("skipped", reason, None)}


def test_a_judge_that_does_not_answer_lets_the_group_wait(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    group = workshop.group(workshop.many([None, None]))
    fake.answers = [(503, "busy"), says(scores(0, 1))]
    with pytest.raises(JudgeSilent, match="503"):
        score(workshop.db, group, judge, SPREAD)
    assert state(workshop, group.id)[0] is GroupState.READY
    assert score(workshop.db, group, judge, SPREAD)
    assert state(workshop, group.id)[0] is GroupState.SCORED


def test_answers_are_compared_not_their_order(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    members = [workshop.closed(name) for name in ("long name of all", "mid name", "s")]
    fake.decide = by_length
    group = workshop.group(members)
    assert score(workshop.db, group, judge, SPREAD)
    found = rewards(workshop, group.id)
    assert (found[0], found[2]) == (1.0, 0.0)
