"""Where a session and its scenario were named; and an index over the sessions of one scenario of one owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE sessions ADD COLUMN session_by TEXT NOT NULL DEFAULT 'header'")
    db.execute("ALTER TABLE sessions ADD COLUMN scenario_by TEXT NOT NULL DEFAULT 'header'")
    db.execute("CREATE INDEX sessions_by_owner_and_scenario ON sessions (owner, scenario, key)")
