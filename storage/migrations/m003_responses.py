"""The id that a response gave itself, by which a later request may name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE calls ADD COLUMN response_id TEXT")
    db.execute("CREATE INDEX calls_by_response ON calls (response_id) WHERE response_id IS NOT NULL")
