"""Groups that a run trains again, and those that were scored last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE run_groups ADD COLUMN replayed INTEGER NOT NULL DEFAULT 0")
    db.execute("CREATE INDEX groups_by_scoring ON groups (scored_at) WHERE scored_at IS NOT NULL")
