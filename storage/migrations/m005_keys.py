"""Client keys, by the name of the owner that each stands for; of the key itself only its hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute("CREATE TABLE keys (name TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, created_at REAL NOT NULL)")
