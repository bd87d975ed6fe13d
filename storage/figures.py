"""How much lies where in the data folder: files alone, the database is not asked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage.database import FILE
from storage.journal import Position, segment_path, segments


@dataclass(frozen=True, slots=True)
class Figures:
    journal_backlog_bytes: int
    """Recorded, and not yet in the database."""
    wal_bytes: int
    database_bytes: int


def read(folder: Path, taken: Position) -> Figures:
    """``taken``: how far the journal is in the database."""
    journal = folder / "journal"
    waiting = sum(file_size(segment_path(journal, number)) for number in segments(journal) if number >= taken.segment)
    done = taken.offset if segment_path(journal, taken.segment).exists() else 0
    return Figures(max(0, waiting - done), file_size(folder / f"{FILE}-wal"), file_size(folder / FILE))


def file_size(path: Path) -> int:
    """0 where there is none."""
    with suppress(FileNotFoundError):  # deleted meanwhile
        return path.stat().st_size
    return 0
