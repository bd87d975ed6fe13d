"""What the database needs from time to time beside records: a short WAL, and old sessions deleted."""

from __future__ import annotations

import logging
import time

from storage.database import WAL_BYTES, Database, OperationalError
from storage.figures import file_size
from storage.retention import Keep, Retention

_log = logging.getLogger("slipstream.upkeep")

_CHECKPOINT_SECONDS = 60.0
"""The trainer's heartbeats lengthen the WAL, and only the ingestion checkpoints: also when no call comes."""
_TRUNCATE_SECONDS = 2.0
"""Between two tries to cut back a WAL that is too long."""
_TRUNCATE_BUSY_SECONDS = 0.2
"""How long readers are waited for, and writers held up, in one try."""
_RETENTION_SECONDS = 60.0
"""Between two passes over the sessions."""


class Upkeep:
    """`step` does what is due; it takes milliseconds. In the thread that writes, between two batches."""

    def __init__(self, db: Database, keep: Keep) -> None:
        self._db = db
        self._retention = Retention(db, keep)
        self._wal = db.path.with_name(f"{db.path.name}-wal")
        self._checkpoint_at = time.monotonic() + _CHECKPOINT_SECONDS
        self._truncate_at = self._retain_at = 0.0
        self.problem: str | None = None
        """Why the WAL or the database is larger than it should be, in words."""

    def step(self) -> None:
        now = time.monotonic()
        try:
            if now >= self._checkpoint_at:
                self._checkpoint_at = now + _CHECKPOINT_SECONDS
                self._db.first("PRAGMA wal_checkpoint(PASSIVE)")
            if now >= self._truncate_at:
                self._truncate_at = now + _TRUNCATE_SECONDS
                self._cut_back()
            if now >= self._retain_at and not self._retention.step(time.time()):
                self._retain_at = now + _RETENTION_SECONDS
        except OperationalError as error:
            # Nothing is lost by it: it is done later.
            _log.warning("the database could not be looked after: %s", error)
            self._retain_at = now + _RETENTION_SECONDS

    def _cut_back(self) -> None:
        """A WAL that grew while somebody read begins again from its start, as soon as nobody reads in it."""
        if file_size(self._wal) <= WAL_BYTES:
            self.problem = None
            return
        busy = self._db.number("PRAGMA busy_timeout")
        self._db.first(f"PRAGMA busy_timeout = {int(1000 * _TRUNCATE_BUSY_SECONDS)}")
        try:
            row = self._db.first("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            self._db.first(f"PRAGMA busy_timeout = {busy}")
        held = row is None or row[0]
        self.problem = (
            f"{self._wal} has {file_size(self._wal) // 10**6} MB and grows, since a program has been reading the"
            " database in one transaction for long: end that program (`fuser` names it)"
            if held
            else None
        )
