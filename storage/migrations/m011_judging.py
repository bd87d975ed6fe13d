"""What the judge cost and may cost, when it is asked again, and what it was asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database

_CHANGES = (
    "ALTER TABLE groups ADD COLUMN judge_silences INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE groups ADD COLUMN judge_due REAL",
    "ALTER TABLE groups ADD COLUMN judge_key TEXT",
    "CREATE INDEX groups_by_judge_key ON groups (judge_key) WHERE judge_key IS NOT NULL",
    "ALTER TABLE group_members ADD COLUMN attempt TEXT",
    "CREATE TABLE judge_spending (day TEXT PRIMARY KEY, tokens INTEGER NOT NULL)",
    "CREATE TABLE judge_state (id INTEGER PRIMARY KEY CHECK (id = 1), model TEXT, budget INTEGER)",
)


def migrate(db: Database) -> None:
    for statement in _CHANGES:
        db.execute(statement)
