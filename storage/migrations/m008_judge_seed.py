"""From what the ids and the order of a group's attempts were drawn when the judge saw them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE groups ADD COLUMN judge_seed INTEGER")
