"""Whether a failed run speaks against the groups that it took: not where the trainer was stopped, say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database

_NO_FAULT_OF_GROUPS = (
    "the trainer stopped during this run; its groups wait for the next one",
    "the update worker was closed during the job",
)


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE run_groups ADD COLUMN blamed INTEGER NOT NULL DEFAULT 1")
    db.execute(
        "UPDATE run_groups SET blamed = 0 WHERE run IN (SELECT id FROM runs WHERE reason IN (?, ?))",
        _NO_FAULT_OF_GROUPS,
    )
