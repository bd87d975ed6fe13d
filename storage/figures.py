"""How much lies where in the data folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage.database import FILE, Database
from storage.journal import segment_path, segments


@dataclass(frozen=True, slots=True)
class Figures:
    journal_backlog_bytes: int
    """Recorded, and not yet in the database."""
    wal_bytes: int
    database_bytes: int


def read(folder: Path, db: Database) -> Figures:
    """Of the data folder ``folder``. The database knows how far the journal has been taken in."""
    journal = folder / "journal"
    taken = db.first("SELECT segment, offset FROM journal_position")
    assert taken is not None
    sizes = {number: file_size(segment_path(journal, number)) for number in segments(journal)}
    waiting = sum(size for number, size in sizes.items() if number >= taken["segment"])
    done = taken["offset"] if taken["segment"] in sizes else 0
    return Figures(max(0, waiting - done), file_size(folder / f"{FILE}-wal"), file_size(folder / FILE))


def file_size(path: Path) -> int:
    """0 where there is none."""
    with suppress(FileNotFoundError):  # deleted meanwhile
        return path.stat().st_size
    return 0
