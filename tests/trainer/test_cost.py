"""What a turn costs follows from what is new, however many sessions wait: counted in steps of SQLite's machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from storage import sessions
from storage.database import Database
from storage.states import CallOutcome
from storage.types import Session
from tests.storage.recorded import call_start
from tests.trainer.workshop import Workshop

FEW, MANY, NEW = 100, 10_000, 10


def steps(db: Database, work: Callable[[], object]) -> int:
    """Of SQLite's virtual machine, while ``work`` is done."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    db.conn.set_progress_handler(step, 1)
    work()
    db.conn.set_progress_handler(None, 1)
    return taken


def copies(workshop: Workshop, template: Session, scenarios: list[str]) -> None:
    """For each of the scenarios a session as the template is."""
    db = workshop.db
    calls = [dict(row) for row in db.all("SELECT * FROM calls WHERE session = ? ORDER BY seq", (template.key,))]
    of_calls = {call["seq"]: db.all("SELECT * FROM choices WHERE call = ?", (call["seq"],)) for call in calls}
    (session,) = db.all("SELECT * FROM sessions WHERE key = ?", (template.key,))
    first = db.number("SELECT max(seq) FROM calls") + 1
    with db.transaction():
        for number, scenario in enumerate(scenarios):
            name = f"{scenario}: {first} {number}"
            changes = {"key": None, "session_id": name, "scenario": scenario, "state": "open"}
            key = db.insert("sessions", **{**dict(session), **changes})
            seqs: dict[Any, int] = {call["seq"]: first + place for place, call in enumerate(calls)}
            first += len(calls)
            for old, new in seqs.items():
                call = next(one for one in calls if one["seq"] == old)
                of_copy = {"seq": new, "id": f"copy {new}", "session": key, "parent": seqs.get(call["parent"])}
                db.insert("calls", **{**call, **of_copy})
                for choice in of_calls[old]:
                    db.insert("choices", **{**dict(choice), "call": new})
        db.execute("UPDATE sessions SET state = 'closed' WHERE state = 'open'")


def plain(workshop: Workshop) -> Session:
    return workshop.closed("plain", scenario="plain", reward=None)


def crashed(workshop: Workshop) -> Session:
    """It waits for a reward."""
    workshop.call(call_start("crashed", scenario="crashed"), "one")
    start = call_start("crashed", scenario="crashed")
    workshop.begin(start, [{"role": "user", "content": "two"}])
    workshop.finish(start, CallOutcome.CLIENT_GONE)
    workshop.close("crashed")
    workshop.take_in()
    return workshop.session("crashed")


@pytest.mark.parametrize(
    ("template", "scenario"),
    [(plain, lambda number: f"scenario {number}"), (crashed, lambda number: f"scenario {number % 4}")],
    ids=["each alone", "many without a reward"],
)
def test_a_turn_costs_what_is_new(
    workshop: Workshop, template: Callable[[Workshop], Session], scenario: Callable[[int], str]
) -> None:
    one = template(workshop)
    cycle = workshop.cycle(group={"size": 8, "min_size": 4, "max_wait": 1e10}, reward={"wait": 1e10})
    turns, watches = [], []
    for already, many in ((0, FEW), (FEW + NEW, MANY)):
        copies(workshop, one, [scenario(number) for number in range(already, many)])
        cycle.turn()
        copies(workshop, one, [scenario(number) for number in range(many, many + NEW)])
        watches.append(steps(workshop.db, lambda: cycle.is_due(workshop.db)))
        turns.append(steps(workshop.db, cycle.turn))
        assert sessions.count_waiting(workshop.db) == 1 + many + NEW
    assert turns[1] < 2 * turns[0]
    assert watches[1] < 2 * watches[0]
    assert min(turns) > watches[0] > 10 * NEW, "all of it was counted"
