"""How many there are of each kind, kept as they come and go: counting a million rows takes its time."""

from __future__ import annotations

from typing import Literal

from storage.database import Database


def of(db: Database, what: Literal["session", "skipped", "group"]) -> dict[str, int]:
    """Sessions by what they count as, skipped sessions by their reason, groups by their state."""
    rows = db.all("SELECT name, n FROM counts WHERE what = ? AND n > 0", (what,))
    return {row["name"]: row["n"] for row in rows}
