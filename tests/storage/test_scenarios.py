from typing import Any

from storage import drifts, groups, scenarios, sessions
from storage.drifts import Drift, Kind
from storage.states import Outcome
from storage.types import GroupId, Session
from tests.storage.recorded import Recorded, call_start


def attempt(recorded: Recorded, name: str, scenario: str | None, *, closes: bool = True) -> Session:
    recorded.call(call_start(name, scenario=scenario), "hello")
    if closes:
        recorded.close(name)
    recorded.take_in()
    return recorded.session(name)


def listed(recorded: Recorded, limit: int = 100, cursor: int | None = None, **where: Any) -> list[dict[str, Any]]:
    return scenarios.rows(recorded.db, where, limit, cursor)


def test_what_became_of_a_scenario_is_counted(recorded: Recorded) -> None:
    a, b = attempt(recorded, "a", "task"), attempt(recorded, "b", "task")
    attempt(recorded, "c", "task", closes=False)
    attempt(recorded, "d", None)
    other = attempt(recorded, "e", "other")
    groups.claim(recorded.db, GroupId("g"), [a, b], 5.0)
    with recorded.db.transaction():
        sessions.set_outcome(recorded.db, a.key, Outcome.SKIPPED, "crashed", None, 6.0)
    first, second = listed(recorded)
    assert (first["scenario"], first["newest"], first["sessions"], first["groups"]) == (
        "other",
        other.key,
        {"closed": 1},
        {},
    )
    assert second["sessions"] == {"closed": 1, "open": 1, "skipped": 1}
    assert second["groups"] == {"ready": 1}
    assert second["drift"] == {"sessions": 0, "continued": 0, "drifted": 0, "kinds": {}}


def test_drift_adds_up_over_the_sessions_of_a_scenario(recorded: Recorded) -> None:
    found = [attempt(recorded, name, "task") for name in "abcd"]
    looks = [Drift(3, 0), Drift(4, 2, kind=Kind.TOOL_CALL), Drift(2, 2, kind=Kind.TOOL_CALL), Drift(1, 1)]
    for session, look in zip(found, looks, strict=True):
        drifts.keep(recorded.db, session.key, look)
    (task,) = listed(recorded)
    kinds = {"tool call re-serialised": 2, "not known": 1}
    assert task["drift"] == {"sessions": 4, "continued": 10, "drifted": 5, "kinds": kinds}


def test_scenarios_are_paged_and_filtered(recorded: Recorded) -> None:
    for name in "abcde":
        attempt(recorded, name, f"task {name}")
    attempt(recorded, "f", "task a")
    assert [one["scenario"] for one in listed(recorded)] == ["task a", "task e", "task d", "task c", "task b"]
    first = listed(recorded, limit=2)
    then = listed(recorded, limit=2, cursor=first[-1]["newest"])
    assert [one["scenario"] for one in (*first, *then)] == ["task a", "task e", "task d", "task c"]
    (one,) = listed(recorded, scenario="task a")
    assert one["sessions"] == {"closed": 2}
    assert listed(recorded, owner="somebody") == []
