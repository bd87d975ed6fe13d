"""What is new among the sessions that wait, without a look at the others: each has the number of its last change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.migrations.m004_many_calls import TRIGGERS

if TYPE_CHECKING:
    from sqlite_utils.db import Database

_NEXT = "UPDATE counts SET n = n + 1 WHERE what = 'change';"
_NUMBER = """UPDATE waiting_sessions SET change = (SELECT n FROM counts WHERE what = 'change')
    WHERE session = NEW.session;"""

_TRIGGERS = {
    "session_waits AFTER INSERT ON waiting_sessions": _NEXT + _NUMBER,
    "reward_of_waiting AFTER INSERT ON rewards"
    " WHEN EXISTS (SELECT 1 FROM waiting_sessions WHERE session = NEW.session)": _NEXT + _NUMBER,
}


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE waiting_sessions ADD COLUMN change INTEGER NOT NULL DEFAULT 0")
    db.execute("CREATE INDEX waiting_by_change ON waiting_sessions (change)")
    db.execute("INSERT INTO counts (what, name, n) VALUES ('change', 'waiting', 0)")
    # These say what they insert by its place, and the table has one column more.
    for when in (one for one in TRIGGERS if one.startswith(("session_closes ", "member_went ", "outcome_went "))):
        db.execute(f"DROP TRIGGER {when.partition(' ')[0]}")
        then = TRIGGERS[when].replace("INTO waiting_sessions", "INTO waiting_sessions (session)")
        db.execute(f"CREATE TRIGGER {when} BEGIN {then} END")
    for when, then in _TRIGGERS.items():
        db.execute(f"CREATE TRIGGER {when} BEGIN {then} END")
