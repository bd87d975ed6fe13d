"""One turn of the background: every session ends somewhere, and what is stuck blocks nobody."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from storage import coordination, groups, runs, sessions
from storage.database import OperationalError
from storage.states import ClosedBy, GroupState, RunState, SessionState
from storage.types import TaggedBy
from tests.storage.recorded import call_start, capture
from tests.trainer.fake_judge import FakeJudge, by_length, served
from tests.trainer.loopback import FakeModels
from tests.trainer.workshop import Workshop
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
        "1 scored group: there are 0, and 0 that wait for the judge; "
        "closed sessions that wait for others of their scenario: 0"
    )


def test_every_session_ends_somewhere(workshop: Workshop) -> None:
    workshop.a_version(1)
    workshop.a_version(2)
    new: dict[str, Any] = {"version": 2}
    good = workshop.many([0.0, 0.5, 1.0, 0.25], **new)
    dull = workshop.many([0.5] * 4, "dull", **new)
    judged = workshop.many([0.5, 0.75, 0.0, 1.0], "eval only", split="eval", **new)
    stale = workshop.closed("stale", reward=1.0, version=0)
    mixed = workshop.closed("mixed", reward=1.0, version=0, pinned=2)
    lost = workshop.closed(
        "lost", reward=1.0, tokens=b'{"reason":"beam search","prompts":[],"choices":[],"sampling":{}}'
    )
    wrong = workshop.closed("wrong", reward=1.0, tokens=capture([1], [2]).replace(b"-0.5", b"0.5"), **new)
    unasked = workshop.closed("no scenario", scenario=None)
    workshop.call(call_start("untagged", session_by=TaggedBy.NONE), "hello")
    workshop.take_in()
    workshop.cycle(max_staleness=1).turn()
    (_, _, run) = workshop.all_runs()
    assert run.state is RunState.SUCCEEDED
    assert [workshop.outcome(one) for one in good] == [("trained", None, run.id)] * 4
    assert [workshop.outcome(one) for one in judged] == [("evaluated", None, None)] * 4
    reasons = [workshop.outcome(one) for one in (*dull[:1], stale, mixed, lost, wrong)]
    assert [(outcome or ("",))[0] for outcome in reasons] == ["skipped"] * 5
    assert [(outcome or ("", ""))[1] for outcome in reasons] == [
        "no variance: best and worst reward differ by 0",
        "stale: sampled 2 versions before the newest",
        "stale: sampled 2 versions before the newest",
        "stale: sampled 2 versions before the newest",
        "nothing to train on: not every sampled token has a logprob that is a finite number of at most 0",
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


def test_a_request_for_one_scenario_forms_no_small_groups_elsewhere(workshop: Workshop) -> None:
    workshop.many([0.0, 1.0], "asked")
    others = workshop.many([0.0, 1.0], "other")
    workshop.ask("asked")
    workshop.cycle().turn()
    assert states(workshop) == {"trained": 1}
    assert [session.key for session in sessions.waiting(workshop.db)] == [other.key for other in others]


def test_after_a_stop_nothing_new_begins(workshop: Workshop) -> None:
    ready = workshop.group(workshop.many([0.0, 1.0]))
    request = workshop.ask()
    cycle = workshop.cycle()
    cycle.stop()
    cycle.turn()
    assert groups.get(workshop.db, ready.id).state is GroupState.READY
    assert (workshop.all_runs(), [asked.id for asked in runs.requests(workshop.db)]) == ([], [request.id])


def test_without_weights_no_run_begins_by_itself(workshop: Workshop, models: FakeModels) -> None:
    workshop.many([0.0, 0.5, 0.75, 1.0])
    models.status = 503
    cycle = workshop.cycle()
    for _ in range(2):
        cycle.turn()
    assert (workshop.all_runs(), states(workshop)) == ([], {"scored": 1})
    assert "does not tell where its weights lie" in (said(workshop).problem or "")
    request = workshop.ask()
    cycle.turn()
    assert runs.get(workshop.db, request.id).state is RunState.FAILED, "whoever asks is told"
    models.status = 200
    cycle.turn()
    assert (states(workshop), said(workshop).problem) == ({"trained": 1}, None)


def test_a_commit_that_fails_after_the_publication_is_made_up_for(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = workshop.many([0.0, 0.5, 0.75, 1.0])
    cycle = workshop.cycle()

    def full(*_: object, **__: object) -> None:
        raise OperationalError("database or disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(sessions, "set_outcome", full)
        with pytest.raises(OperationalError):
            cycle.turn()
        with pytest.raises(OperationalError):
            cycle.turn()
    (run,) = workshop.all_runs()
    assert (run.state, states(workshop)) == (RunState.RUNNING, {"scored": 1})
    cycle.turn()
    (run,) = workshop.all_runs()
    assert (run.state, run.version) == (RunState.SUCCEEDED, 1)
    assert [workshop.outcome(member) for member in members] == [("trained", None, run.id)] * 4
    assert len(workshop.worker.jobs) == 1


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
    workshop.cycle(group=group, trainer={"groups": 9}).form()
    time.sleep(0.06)
    workshop.cycle(group=group, trainer={"groups": 9}).turn()
    assert states(workshop) == {"trained": 1}


def test_a_batch_that_always_fails_is_given_up(workshop: Workshop) -> None:
    workshop.worker.plan = ["failed"] * 4
    members = workshop.many([0.0, 0.5, 0.75, 1.0])
    cycle = workshop.cycle()
    for _ in range(3):
        assert states(workshop) != {"skipped": 1}
        cycle.turn()
    last = workshop.all_runs()[-1]
    reason = "3 runs failed with it: the loss is not a number"
    assert [workshop.outcome(member) for member in members] == [("skipped", reason, last.id)] * 4
    cycle.turn()
    assert (len(workshop.all_runs()), states(workshop)) == (3, {"skipped": 1})


def test_after_a_failed_run_the_next_turn_tries_again(workshop: Workshop) -> None:
    workshop.worker.plan = ["failed", "done"]
    workshop.many([0.0, 0.5, 0.75, 1.0])
    cycle = workshop.cycle()
    cycle.turn()
    cycle.turn()
    assert [run.state for run in workshop.all_runs()] == [RunState.FAILED, RunState.SUCCEEDED]
    assert states(workshop) == {"trained": 1}
