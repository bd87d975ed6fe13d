"""What is counted as rows come and go is what counting all of them gives."""

from __future__ import annotations

from typing import Any

from storage import groups, sessions
from storage.database import Database
from storage.states import ClosedBy, GroupState, Outcome
from storage.types import GroupId, RunId, SessionKey, TaggedBy
from tests.storage.recorded import Recorded, call_start


def counted(db: Database) -> tuple[dict[str, int], dict[str, int], list[SessionKey]]:
    """Sessions, groups, and the sessions that wait: by looking at every row."""
    names: dict[str, int] = {}
    waiting = []
    for row in db.all(
        "SELECT key, state, outcome, group_members.session AS member FROM sessions"
        " LEFT JOIN outcomes ON outcomes.session = key LEFT JOIN group_members ON group_members.session = key"
    ):
        name = row["outcome"] or ("grouped" if row["member"] else row["state"])
        names[name] = names.get(name, 0) + 1
        if name == "closed":
            waiting.append(row["key"])
    found: dict[str, int] = {}
    for row in db.all("SELECT state FROM groups"):
        found[row["state"]] = found.get(row["state"], 0) + 1
    return names, found, waiting


def assert_right(recorded: Recorded, expected: dict[str, int]) -> None:
    recorded.take_in()
    names, found, waiting = counted(recorded.db)
    assert sessions.states(recorded.db) == names == expected
    assert groups.states(recorded.db) == found
    assert sorted(session.key for session in sessions.waiting(recorded.db)) == waiting


def test_counts_follow_a_life(recorded: Recorded) -> None:
    db: Any = recorded.db
    assert_right(recorded, {})
    for number in range(6):
        recorded.call(call_start(f"s{number}"), "hello")
    recorded.call(call_start("untagged", session_by=TaggedBy.NONE), "hello")
    recorded.call(call_start("bare", scenario=None), "hello")
    assert_right(recorded, {"open": 7, "skipped": 1})
    for number in range(5):
        recorded.close(f"s{number}", ClosedBy.IDLE)
    recorded.close("bare")
    assert_right(recorded, {"open": 1, "closed": 5, "skipped": 2})
    assert sessions.count_skipped(db, sessions.UNTAGGED) == 1
    assert sessions.count_skipped(db, sessions.NO_SCENARIO) == 1
    recorded.call(call_start("s0"), "late")
    assert_right(recorded, {"open": 2, "closed": 4, "skipped": 2})
    first, second, third, fourth = sessions.waiting(db)
    assert groups.claim(db, GroupId("g"), [first, second], 1.0)
    assert_right(recorded, {"open": 2, "closed": 2, "grouped": 2, "skipped": 2})
    sessions.set_outcome(db, third.key, Outcome.SKIPPED, "stale", None, 1.0)
    assert_right(recorded, {"open": 2, "closed": 1, "grouped": 2, "skipped": 3})
    groups.move(db, groups.get(db, GroupId("g")), GroupState.SCORED)
    groups.move(db, groups.get(db, GroupId("g")), GroupState.TRAINED)
    for session in (first, second):
        sessions.set_outcome(db, session.key, Outcome.TRAINED, None, RunId("r"), 1.0)
    assert_right(recorded, {"open": 2, "closed": 1, "trained": 2, "skipped": 3})
    recorded.call(call_start("s1"), "the next episode")
    assert_right(recorded, {"open": 3, "closed": 1, "trained": 2, "skipped": 3})
    assert [session.key for session in sessions.waiting(db)] == [fourth.key]
    with db.transaction():
        for table in ("outcomes", "group_members"):
            db.execute(f"DELETE FROM {table}")
    assert_right(recorded, {"open": 3, "closed": 4, "skipped": 2})


def test_a_transaction_that_fails_counts_nothing(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "hello")
    recorded.take_in()
    try:
        with recorded.db.transaction():
            recorded.db.execute("UPDATE sessions SET state = 'closed'")
            raise ValueError
    except ValueError:
        pass
    assert_right(recorded, {"open": 1})
