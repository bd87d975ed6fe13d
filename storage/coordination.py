"""What proxy and trainer tell each other beside the work itself: a heartbeat, and whether to pause."""

from __future__ import annotations

import os
from dataclasses import dataclass

from storage.database import Database

STALE_SECONDS = 10.0
"""A heartbeat older than this means that no trainer runs."""

_PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class TrainerState:
    """One row, written by the trainer."""

    pid: int
    heartbeat_at: float
    next_cycle_at: float | None
    doing: str
    waits_for: str | None
    """What the next run waits for, in words."""
    problem: str | None
    """What keeps the trainer from its work, in words, with what to do."""


def beat(db: Database, at: float, next_cycle_at: float | None = None) -> None:
    """The trainer lives, and turns next at ``next_cycle_at``. One statement, since every beat lengthens the WAL."""
    db.execute(
        "INSERT INTO trainer_state (id, pid, heartbeat_at, next_cycle_at, doing) VALUES (1, ?1, ?2, ?3, 'starting')"
        " ON CONFLICT (id) DO UPDATE SET pid = ?1, heartbeat_at = ?2, next_cycle_at = ?3",
        (os.getpid(), at, next_cycle_at),
    )


def say(db: Database, doing: str, waits_for: str | None = None, problem: str | None = None) -> None:
    """What the trainer does now; `beat` has made the row."""
    db.execute("UPDATE trainer_state SET doing = ?, waits_for = ?, problem = ?", (doing, waits_for, problem))


def trainer(db: Database) -> TrainerState | None:
    row = db.first("SELECT * FROM trainer_state")
    if row is None:
        return None
    return TrainerState(
        pid=row["pid"],
        heartbeat_at=row["heartbeat_at"],
        next_cycle_at=row["next_cycle_at"],
        doing=row["doing"],
        waits_for=row["waits_for"],
        problem=row["problem"],
    )


def set_paused(db: Database, paused: bool) -> None:
    """The proxy's part: pause or resume the scheduler, not the serving."""
    db.execute(
        "INSERT INTO switches VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2",
        (_PAUSED, str(int(paused))),
    )


def is_paused(db: Database) -> bool:
    row = db.first("SELECT value FROM switches WHERE name = ?", (_PAUSED,))
    return row is not None and row["value"] == "1"
