"""Which closed sessions are worth comparing, and how the others end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from storage import sessions
from storage.states import CallOutcome, ClosedBy
from storage.types import Session
from tests.storage.recorded import a_reward, call_start, capture
from tests.trainer.made import call, choice
from tests.trainer.workshop import Workshop
from trainer.sieve import Sieve, crash

GONE = CallOutcome.CLIENT_GONE

CRASHES: list[tuple[CallOutcome, int | None, bool]] = [
    (CallOutcome.COMPLETE, 200, False),
    (CallOutcome.SUPERSEDED, 200, False),
    (CallOutcome.UPSTREAM_ERROR, 400, False),
    (CallOutcome.UPSTREAM_ERROR, 404, False),
    (CallOutcome.UPSTREAM_ERROR, 429, True),
    (CallOutcome.UPSTREAM_ERROR, 500, True),
    (CallOutcome.UPSTREAM_ERROR, 503, True),
    (CallOutcome.UPSTREAM_ERROR, None, True),
    (CallOutcome.TRUNCATED, 200, True),
    (CallOutcome.INTERRUPTED, None, True),
    (CallOutcome.CLIENT_GONE, 200, True),
]


@pytest.mark.parametrize(("outcome", "status", "crashed"), CRASHES)
def test_a_session_crashed_where_its_last_call_has_no_whole_answer(
    outcome: CallOutcome, status: int | None, crashed: bool
) -> None:
    good = call(1, [10], choice([20]))
    last = call(2, [10, 20], choice([30]), outcome=outcome, status=status)
    said = f"crashed: its last call ended as {outcome}, and nobody gave it a reward" if crashed else None
    assert crash([good, last]) == crash([last, good]) == said
    assert crash([last, call(3, [10], choice([20]))]) is None, "it went on"
    assert crash([]) is None


def crashed(workshop: Workshop, name: str, reward: float | None = None) -> Session:
    workshop.call(call_start(name), "one")
    start = call_start(name)
    workshop.begin(start, [{"role": "user", "content": "two"}])
    workshop.finish(start, GONE)
    if reward is not None:
        workshop.reward(a_reward(name, reward))
    workshop.close(name)
    workshop.take_in()
    return workshop.session(name)


def sieve(workshop: Workshop, **changes: Any) -> Sieve:
    return Sieve(workshop.db, workshop.settings(**changes))


def test_a_crash_is_no_reward_of_zero(workshop: Workshop) -> None:
    session = crashed(workshop, "s")
    assert sieve(workshop).candidate(session) is None
    assert workshop.outcome(session) == (
        "skipped", "crashed: its last call ended as client_gone, and nobody gave it a reward", None,
    )  # fmt: skip


def test_a_crash_that_has_a_reward_is_compared(workshop: Workshop) -> None:
    session = crashed(workshop, "s", reward=0.0)
    found = sieve(workshop).candidate(session)
    assert found is not None
    assert (found.session, found.behind) == (session, 0)


def test_the_reward_for_a_crash_is_waited_for(workshop: Workshop) -> None:
    session = crashed(workshop, "s")
    patient = sieve(workshop, reward={"wait": time.time()})
    assert patient.candidate(session) is None
    assert workshop.outcome(session) is None
    workshop.reward(a_reward("s", 1.0))
    workshop.take_in()
    assert patient.candidate(session) is not None


def test_who_found_nobody_ends_with_that(workshop: Workshop) -> None:
    one = workshop.closed("one", reward=1.0)
    workshop.cycle(group={"size": 4, "min_size": 3}).turn()
    assert sessions.waiting(workshop.db) == []
    assert workshop.outcome(one) == (
        "skipped", "alone: within 24 hours there were not 2 other sessions to compare it with", None,
    )  # fmt: skip


def test_a_session_that_was_opened_again_is_looked_at_again(workshop: Workshop) -> None:
    workshop.call(call_start("s"), "one")
    workshop.close("s", ClosedBy.IDLE)
    workshop.take_in()
    found = sieve(workshop)
    assert found.candidate(workshop.session("s")) is not None
    crashed(workshop, "s")
    assert found.candidate(workshop.session("s")) is None
    assert (workshop.outcome(workshop.session("s")) or ("",))[0] == "skipped"


def test_a_session_that_waits_is_read_once(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    session = workshop.closed("one", tokens=capture([1], [2]))
    found = sieve(workshop)
    assert found.candidate(session) is not None
    monkeypatch.setattr("storage.calls.of_session", None)
    assert found.candidate(session) is not None
