"""Requests and responses as they were, of calls that came to their end."""

from __future__ import annotations

from dataclasses import dataclass

from storage import calls
from storage.database import Database
from storage.states import CallOutcome
from storage.types import SessionKey


@dataclass(frozen=True, slots=True)
class Exchange:
    dialect: str
    request: bytes
    response: bytes


def newest(db: Database, session: SessionKey, limit: int) -> list[Exchange]:
    """The newest ``limit`` complete calls of a session, the oldest of them first."""
    rows = db.all(
        "SELECT seq, dialect FROM calls WHERE session = ? AND outcome = ? ORDER BY seq DESC LIMIT ?",
        (session, CallOutcome.COMPLETE, limit),
    )
    return [
        Exchange(row["dialect"], calls.body(db, row["seq"]), calls.body(db, row["seq"], "response"))
        for row in reversed(rows)
    ]
