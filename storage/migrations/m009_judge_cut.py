"""What of a group the judge was not shown, since it did not fit into its context."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE groups ADD COLUMN judge_cut TEXT")
