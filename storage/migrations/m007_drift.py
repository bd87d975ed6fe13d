"""What the trainer found of prompts that say an answer otherwise than it was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute(
        "CREATE TABLE drifts (session INTEGER PRIMARY KEY REFERENCES sessions (key), continued INTEGER NOT NULL,"
        " drifted INTEGER NOT NULL, call TEXT, kind TEXT, sampled TEXT, prompted TEXT, problem TEXT)"
    )
    db.execute("CREATE INDEX drifts_of_turns ON drifts (session) WHERE continued >= 2")
