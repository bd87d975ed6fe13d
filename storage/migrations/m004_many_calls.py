"""For millions of calls: bodies deflated, counts kept as rows come and go, and an index for each question asked often.

The counts and the sessions that wait for the trainer are kept by triggers, in the transaction of whoever changes the
rows that they follow from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database

_NAME = """coalesce(
    (SELECT outcome FROM outcomes WHERE session = {key}),
    (SELECT 'grouped' FROM group_members WHERE session = {key}),
    (SELECT state FROM sessions WHERE key = {key}))"""
"""What a session counts as: what became of it, or else its state."""

_IS_FREE = """NOT EXISTS (SELECT 1 FROM outcomes WHERE session = {key})
    AND NOT EXISTS (SELECT 1 FROM group_members WHERE session = {key})"""

_COUNT = """INSERT INTO counts (what, name, n) VALUES ({what}, {name}, {n})
    ON CONFLICT (what, name) DO UPDATE SET n = n + {n};"""


def _count(what: str, name: str, n: int) -> str:
    return _COUNT.format(what=what, name=name, n=n)


_TABLES = (
    "ALTER TABLE calls ADD COLUMN continues INTEGER",
    # What bodies begin with since: how they are stored. Here: whole.
    "UPDATE calls SET response = CAST(X'57' || response AS BLOB)",
    "CREATE TABLE counts (what TEXT NOT NULL, name TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (what, name))"
    " WITHOUT ROWID",
    "CREATE TABLE waiting_sessions (session INTEGER PRIMARY KEY REFERENCES sessions (key))",
    "CREATE INDEX calls_by_parent ON calls (parent) WHERE parent IS NOT NULL",
    "CREATE INDEX sessions_by_owner ON sessions (owner, key)",
    "CREATE INDEX sessions_by_version ON sessions (version, key)",
    "CREATE INDEX groups_listed_by_state ON groups (state, id)",
    "CREATE INDEX groups_listed_by_scenario ON groups (scenario, id)",
    'CREATE INDEX run_groups_by_group ON run_groups ("group")',
    "CREATE INDEX outcomes_by_run ON outcomes (run) WHERE run IS NOT NULL",
)

_FILL = (
    f"INSERT INTO counts SELECT 'session', {_NAME.format(key='s.key')}, count(*) FROM sessions AS s GROUP BY 2",
    "INSERT INTO counts SELECT 'skipped', reason, count(*) FROM sessions WHERE state = 'skipped' GROUP BY reason",
    "INSERT INTO counts SELECT 'group', state, count(*) FROM groups GROUP BY state",
    f"INSERT INTO waiting_sessions SELECT key FROM sessions WHERE state = 'closed' AND {_IS_FREE.format(key='key')}",
)

_WAITS = "INSERT OR IGNORE INTO waiting_sessions VALUES (NEW.key);"
_WAITS_AGAIN = f"""INSERT OR IGNORE INTO waiting_sessions
    SELECT key FROM sessions WHERE key = OLD.session AND state = 'closed' AND {_IS_FREE.format(key="OLD.session")};"""
_WAITS_NO_MORE = "DELETE FROM waiting_sessions WHERE session = {key};"

_TRIGGERS = {
    "session_opens AFTER INSERT ON sessions": _count("'session'", "NEW.state", 1),
    f"session_moves AFTER UPDATE OF state ON sessions WHEN OLD.state <> NEW.state AND {_IS_FREE.format(key='NEW.key')}":
        _count("'session'", "OLD.state", -1) + _count("'session'", "NEW.state", 1),
    "session_closes AFTER UPDATE OF state ON sessions WHEN OLD.state <> 'closed' AND NEW.state = 'closed'": _WAITS,
    "session_closes_no_more AFTER UPDATE OF state ON sessions WHEN OLD.state = 'closed' AND NEW.state <> 'closed'":
        _WAITS_NO_MORE.format(key="NEW.key"),
    "session_is_skipped AFTER UPDATE OF state ON sessions WHEN OLD.state <> 'skipped' AND NEW.state = 'skipped'":
        _count("'skipped'", "coalesce(NEW.reason, '')", 1),
    "session_goes BEFORE DELETE ON sessions":
        _WAITS_NO_MORE.format(key="OLD.key") + _count("'session'", "OLD.state", -1),
    "skipped_session_goes BEFORE DELETE ON sessions WHEN OLD.state = 'skipped'":
        _count("'skipped'", "coalesce(OLD.reason, '')", -1),
    "member_comes BEFORE INSERT ON group_members":
        _count("'session'", _NAME.format(key="NEW.session"), -1),
    "member_came AFTER INSERT ON group_members":
        _count("'session'", _NAME.format(key="NEW.session"), 1) + _WAITS_NO_MORE.format(key="NEW.session"),
    "member_goes BEFORE DELETE ON group_members": _count("'session'", _NAME.format(key="OLD.session"), -1),
    "member_went AFTER DELETE ON group_members":
        _count("'session'", _NAME.format(key="OLD.session"), 1) + _WAITS_AGAIN,
    "outcome_comes BEFORE INSERT ON outcomes": _count("'session'", _NAME.format(key="NEW.session"), -1),
    "outcome_came AFTER INSERT ON outcomes":
        _count("'session'", _NAME.format(key="NEW.session"), 1) + _WAITS_NO_MORE.format(key="NEW.session"),
    "outcome_goes BEFORE DELETE ON outcomes": _count("'session'", _NAME.format(key="OLD.session"), -1),
    "outcome_went AFTER DELETE ON outcomes":
        _count("'session'", _NAME.format(key="OLD.session"), 1) + _WAITS_AGAIN,
    "group_forms AFTER INSERT ON groups": _count("'group'", "NEW.state", 1),
    "group_moves AFTER UPDATE OF state ON groups WHEN OLD.state <> NEW.state":
        _count("'group'", "OLD.state", -1) + _count("'group'", "NEW.state", 1),
    "group_goes AFTER DELETE ON groups": _count("'group'", "OLD.state", -1),
}  # fmt: skip


def migrate(db: Database) -> None:
    for statement in (*_TABLES, *_FILL):
        db.execute(statement)
    for when, then in _TRIGGERS.items():
        db.execute(f"CREATE TRIGGER {when} BEGIN {then} END")
