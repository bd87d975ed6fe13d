"""A database with a damaged page."""

from __future__ import annotations

from pathlib import Path

import pysqlite3 as sqlite3


def damage(path: Path, table: str) -> None:
    """Write over the first page of a table."""
    db = sqlite3.connect(str(path))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
