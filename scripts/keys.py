"""`slipstream keys`: client keys while no proxy runs; a running one makes them itself (`/admin/keys`)."""

from __future__ import annotations

import contextlib
from pathlib import Path

from proxy import keys, lock
from storage.database import Database


def add(data: Path, name: str) -> str:
    """Make a client key; returns its text, which is kept nowhere. Raises `DataInUse`, `Refused`."""
    with lock.take(data), contextlib.closing(Database(data)) as db:
        return keys.make(db, name)[1]
