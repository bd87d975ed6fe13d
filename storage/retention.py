"""What is kept for how long. Sessions are deleted whole, oldest first, a little at a time, so that recording goes on.

Never deleted: what is open, what waits for the trainer, and the members of a group that is still to be scored or
trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from storage.database import Database
from storage.rewards import WAIT_SECONDS
from storage.types import SessionKey

_DAY = 24 * 3600.0
_WINDOW = 500
"""Sessions that one step looks at."""
_CALLS = 200
"""Calls that one step deletes at most."""
_PAGES = 2000
"""Free pages that one step gives back to the disk at most."""


@dataclass(frozen=True, slots=True)
class Keep:
    """None: without limit."""

    days: float | None = None
    """Since a session's last call."""
    gigabytes: float | None = None
    """Of the database."""


EVERYTHING = Keep()


class Retention:
    """Deletes what `Keep` does not keep. `step` is the whole work; a pass over all sessions is many steps."""

    def __init__(self, db: Database, keep: Keep) -> None:
        self._db = db
        self._keep = keep
        self._from = 0
        """Sessions up to this key have been looked at in this pass."""

    def step(self, now: float) -> bool:
        """Do a little; returns whether there is more to do in this pass."""
        until = self._due_before(now)
        if until is None:
            return self._end(now)
        window = self._db.all(
            "SELECT key, opened_at FROM sessions WHERE key > ? ORDER BY key LIMIT ?", (self._from, _WINDOW)
        )
        if not window or window[0]["opened_at"] >= until:
            return self._end(now)
        due = self._deletable(window[-1]["key"], until)
        if not due:
            self._from = window[-1]["key"]
            return True
        calls = _CALLS
        with self._db.transaction():
            for key in due:
                calls -= delete_part(self._db, key, calls)
                if calls <= 0:
                    break
        self._give_back()
        return True

    def _due_before(self, now: float) -> float | None:
        """A session whose last call is older than this is due; None: none is."""
        if self._keep.gigabytes is not None and used_bytes(self._db) > self._keep.gigabytes * 1e9:
            return math.inf
        return now - self._keep.days * _DAY if self._keep.days is not None else None

    def _deletable(self, last: int, until: float) -> list[SessionKey]:
        rows = self._db.all(
            "SELECT key FROM sessions WHERE key > ? AND key <= ? AND state <> 'open' AND last_call_at < ?"
            " AND NOT EXISTS (SELECT 1 FROM waiting_sessions WHERE session = key)"
            ' AND NOT EXISTS (SELECT 1 FROM group_members JOIN groups ON groups.id = "group"'
            " WHERE session = key AND groups.state IN ('ready', 'scored')) ORDER BY key",
            (self._from, last, until),
        )
        return [SessionKey(row["key"]) for row in rows]

    def _give_back(self) -> None:
        # Each row that is read from it frees a page.
        self._db.all(f"PRAGMA incremental_vacuum({_PAGES})")

    def _end(self, now: float) -> bool:
        """The pass is over: what waited too long for its session goes, too."""
        self._db.execute("DELETE FROM rewards WHERE session IS NULL AND created_at < ?", (now - WAIT_SECONDS,))
        self._from = 0
        return False


def delete_part(db: Database, key: SessionKey, calls: int) -> int:
    """Delete at most ``calls`` calls of a session, the newest first, and with the last one the session itself.

    Returns how much that was, at least 1. Inside a transaction. What is left can be read: no call is a difference to a
    newer one.
    """
    newest = "SELECT seq FROM calls WHERE session = ?1 ORDER BY seq DESC LIMIT ?2"
    db.execute(f"DELETE FROM choices WHERE call IN ({newest})", (key, calls))
    deleted = db.execute(f"DELETE FROM calls WHERE seq IN ({newest})", (key, calls))
    if deleted < calls:
        for table in ("rewards", "group_members", "outcomes", "drifts"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (key,))
        db.execute("DELETE FROM sessions WHERE key = ?", (key,))
    return deleted + 1


def used_bytes(db: Database) -> int:
    """The size of the database without its empty pages."""
    pages = db.number("PRAGMA page_count") - db.number("PRAGMA freelist_count")
    return pages * db.number("PRAGMA page_size")
