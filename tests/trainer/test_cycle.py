"""One turn of the background: every session ends somewhere, and what is stuck blocks nobody."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from storage import coordination, groups, runs, sessions
from storage.states import ClosedBy, GroupState, RunState, SessionState
from tests.storage.recorded import call_start, capture
from tests.trainer.fake_judge import FakeJudge, by_length, says, scores, served
from tests.trainer.workshop import Workshop
from trainer.cycle import NO_JUDGE
from trainer.judge import Judge


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


def states(workshop: Workshop) -> dict[str, int]:
    return groups.states(workshop.db)


def test_a_full_group_is_scored_and_trained_in_one_turn(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    members = [workshop.closed("x" * (number + 1)) for number in range(4)]
    fake.decide = by_length
    workshop.cycle(judge).turn()
    (run,) = workshop.all_runs()
    assert (run.state, run.version) == (RunState.SUCCEEDED, 1)
    assert [workshop.outcome(member) for member in members] == [("trained", None, run.id)] * 4
    assert (said(workshop).doing, said(workshop).problem) == ("waiting", None)
    assert said(workshop).waits_for == (
        "1 scored groups: there are 0, and 0 that wait for the judge; "
        "0 closed sessions wait for others of their scenario"
    )


def test_every_session_ends_somewhere(workshop: Workshop) -> None:
    workshop.a_version(1)
    workshop.a_version(2)
    new: dict[str, Any] = {"version": 2}
    good = workshop.many([0.0, 0.5, 1.0, 0.25], **new)
    dull = workshop.many([0.5] * 4, "dull", **new)
    judged = workshop.many([0.5, 0.75, 0.0, 1.0], "eval only", split="eval", **new)
    stale = workshop.closed("stale", reward=1.0, version=0)
    greedy = workshop.closed("greedy", reward=1.0, tokens=capture([1], [2], temperature=0.0), **new)
    lost = workshop.closed(
        "lost", reward=1.0, tokens=b'{"reason":"beam search","prompts":[],"choices":[],"sampling":{}}'
    )
    wrong = workshop.closed("wrong", reward=1.0, tokens=capture([1], [2]).replace(b"-0.5", b"0.5"), **new)
    unasked = workshop.closed("no scenario", scenario=None)
    workshop.call(call_start("untagged", tagged=False), "hello")
    workshop.take_in()
    workshop.cycle(max_staleness=1).turn()
    (_, _, run) = workshop.all_runs()
    assert run.state is RunState.SUCCEEDED
    assert [workshop.outcome(one) for one in good] == [("trained", None, run.id)] * 4
    assert [workshop.outcome(one) for one in judged] == [("evaluated", None, None)] * 4
    reasons = [workshop.outcome(one) for one in (*dull[:1], stale, greedy, lost, wrong)]
    assert [(outcome or ("",))[0] for outcome in reasons] == ["skipped"] * 5
    assert [(outcome or ("", ""))[1] for outcome in reasons] == [
        "no variance: best and worst reward differ by 0",
        "stale: sampled 2 versions before the newest",
        "nothing to train on: greedy: sampled at temperature 0, where nothing is explored",
        "stale: sampled 2 versions before the newest",
        "its tokens cannot be trained: the logprob of a trained token must be a finite number of at most 0; "
        "wrong at position 1",
    ]
    skipped = [sessions.get(workshop.db, unasked.key), workshop.session("untagged")]
    assert [(one.state, bool(one.reason)) for one in skipped] == [(SessionState.SKIPPED, True)] * 2
    assert sessions.waiting(workshop.db) == []


def test_a_session_without_tokens_says_why(workshop: Workshop) -> None:
    tokens = b'{"reason":"beam search","prompts":[],"choices":[],"sampling":{}}'
    lost, empty = workshop.closed("lost", tokens=tokens), workshop.closed("empty", tokens=capture([1], []))
    gone = workshop.closed("gone", tokens=tokens, split="eval")
    workshop.cycle().turn()
    assert workshop.outcome(lost) == ("skipped", "nothing to train on: beam search", None)
    assert workshop.outcome(empty) == ("skipped", "nothing to train on: nothing was sampled", None)
    assert workshop.outcome(gone) == ("skipped", "nothing to train on: beam search", None)


def test_a_greedy_session_can_be_evaluated(workshop: Workshop) -> None:
    greedy = capture([1], [2], temperature=0.0)
    members = workshop.many([0.0, 0.5, 0.75, 1.0], split="eval", tokens=greedy)
    workshop.cycle().turn()
    assert [workshop.outcome(one) for one in members] == [("evaluated", None, None)] * 4


def test_a_session_that_never_closes_blocks_nobody(workshop: Workshop) -> None:
    workshop.call(call_start("stuck"), "for ever")
    members = workshop.many([0.0, 0.5, 0.75, 1.0])
    workshop.cycle().turn()
    assert [(workshop.outcome(one) or ("",))[0] for one in members] == ["trained"] * 4
    assert workshop.session("stuck").state is SessionState.OPEN


def test_a_session_that_opens_again_leaves_its_neighbours_waiting(workshop: Workshop) -> None:
    members = workshop.many([0.0, 0.5, 0.75])
    workshop.call(call_start("late", scenario="task"), "one")
    workshop.close("late", ClosedBy.IDLE)
    workshop.take_in()
    cycle = workshop.cycle()
    waiting = sessions.waiting(workshop.db)
    assert len(waiting) == 4
    workshop.call(call_start("late"), "two")
    workshop.take_in()
    cycle.turn()
    assert states(workshop) == {}
    workshop.close("late")
    workshop.many([0.1])
    workshop.take_in()
    cycle.turn()
    assert (workshop.outcome(members[0]) or ("",))[0] == ""
    assert states(workshop) == {"ready": 1}, "the four oldest; one of them has no reward, and there is no judge"


def test_without_a_judge_the_groups_with_rewards_go_on(workshop: Workshop) -> None:
    unjudged = workshop.group(workshop.many([None, 1.0]))
    rewarded = workshop.group(workshop.many([0.0, 1.0], "other"))
    workshop.cycle().turn()
    assert groups.get(workshop.db, unjudged.id).state is GroupState.READY
    assert groups.get(workshop.db, rewarded.id).state is GroupState.TRAINED
    assert said(workshop).problem == NO_JUDGE
    assert "1 that wait for the judge" in (said(workshop).waits_for or "")


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


def test_a_refused_group_does_not_stop_the_next(workshop: Workshop, fake: FakeJudge, judge: Judge) -> None:
    first = workshop.group([workshop.closed("a"), workshop.closed("bb")])
    second = workshop.group([workshop.closed("c"), workshop.closed("dd")])
    fake.answers = [says("no"), says("no"), says(scores(0, 1))]
    workshop.cycle(judge, trainer={"groups": 5}).turn()
    assert groups.get(workshop.db, first.id).state is GroupState.SKIPPED
    assert groups.get(workshop.db, second.id).state is GroupState.SCORED


def test_a_pause_stops_everything_but_what_is_asked_for(workshop: Workshop) -> None:
    members = workshop.many([0.0, 0.5, 0.75, 1.0])
    coordination.set_paused(workshop.db, True)
    cycle = workshop.cycle()
    assert not cycle.is_due()
    cycle.turn()
    assert states(workshop) == {}
    assert (said(workshop).doing, said(workshop).waits_for) == ("paused", "resume")
    request = workshop.ask()
    assert cycle.is_due()
    cycle.turn()
    assert runs.get(workshop.db, request.id).state is RunState.SUCCEEDED
    assert (workshop.outcome(members[0]) or ("",))[0] == "trained"
    coordination.set_paused(workshop.db, False)
    assert not cycle.is_due()


def test_a_request_trains_on_what_there_is(workshop: Workshop) -> None:
    workshop.many([0.0, 1.0])
    cycle = workshop.cycle(trainer={"groups": 9})
    cycle.turn()
    assert states(workshop) == {}, "two are fewer than a whole group"
    request = workshop.ask()
    cycle.turn()
    run = runs.get(workshop.db, request.id)
    assert (run.state, run.version) == (RunState.SUCCEEDED, 1)


def test_requests_are_carried_out_one_after_another(workshop: Workshop) -> None:
    workshop.many([0.0, 1.0])
    first, second, third = workshop.ask(loss="ppo"), workshop.ask(), workshop.ask()
    workshop.cycle().turn()
    assert [runs.get(workshop.db, request.id).state for request in (first, second, third)] == [
        RunState.FAILED,
        RunState.SUCCEEDED,
        RunState.SKIPPED,
    ]
    assert runs.requests(workshop.db) == []


@pytest.mark.parametrize(("sessions_closed", "due"), [(0, False), (3, False), (4, True), (5, True)])
def test_a_whole_group_is_due(workshop: Workshop, sessions_closed: int, due: bool) -> None:
    workshop.many([None] * sessions_closed)
    assert workshop.cycle().is_due() is due


def test_a_run_starts_by_itself_when_enough_groups_are_scored(workshop: Workshop) -> None:
    cycle = workshop.cycle(trainer={"groups": 2})
    workshop.many([0.0, 1.0, 0.5, 0.5])
    cycle.turn()
    assert (states(workshop), cycle.enough()) == ({"scored": 1}, False)
    workshop.many([0.0, 1.0, 0.5, 0.5])
    cycle.turn()
    assert states(workshop) == {"trained": 2}
    assert len(workshop.all_runs()) == 1


def test_an_overdue_group_starts_a_run(workshop: Workshop) -> None:
    group = {"size": 4, "min_size": 2, "max_wait": 0.05}
    workshop.many([0.0, 1.0])  # closed long ago
    workshop.cycle(group=group, trainer={"groups": 9}).form(asked=False)
    time.sleep(0.06)
    workshop.cycle(group=group, trainer={"groups": 9}).turn()
    assert states(workshop) == {"trained": 1}


def test_after_a_failed_run_the_next_turn_tries_again(workshop: Workshop) -> None:
    workshop.worker.plan = ["failed", "done"]
    workshop.many([0.0, 0.5, 0.75, 1.0])
    cycle = workshop.cycle()
    cycle.turn()
    cycle.turn()
    assert [run.state for run in workshop.all_runs()] == [RunState.FAILED, RunState.SUCCEEDED]
    assert states(workshop) == {"trained": 1}
