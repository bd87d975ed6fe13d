"""The database that the proxy works with: the installation's, or an empty one for as long as that cannot be used."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from proxy.settings import ProxySettings
from storage import keys, sessions, versions
from storage.database import Database, DatabaseError
from storage.errors import StorageError


@dataclass(frozen=True, slots=True)
class Store:
    folder: Path
    """Where the database lies."""
    durable: bool
    after: int
    """The journal goes on behind the segment of this number."""
    problem: str | None = None
    """Why it is not the installation's database, and what to do; None when it is."""

    def connect(self) -> Database:
        """A connection of its own for each thread."""
        return Database(self.folder, durable=self.durable)


@contextmanager
def open_store(settings: ProxySettings) -> Iterator[Store]:
    """The installation's database. Where it cannot be used, agents are served all the same, and the journal keeps
    their calls (promise 3): what else the proxy would read there is not known then, and what it writes is thrown away.
    """
    try:
        db = Database(settings.data, durable=settings.fsync)
        try:
            after = db.number("SELECT segment FROM journal_position")
            # What else is read at the start: a damaged page in it must show here.
            for read in (sessions.opened, keys.all_keys, versions.all_versions):
                read(db)
        finally:
            db.close()
    except (StorageError, DatabaseError) as error:
        problem = (
            f"{error}. Calls are kept in the journal, and are taken in when the proxy is started again with a database "
            "that can be used; until then the base model answers, and everyone is the owner `default`"
        )
    else:
        yield Store(settings.data, settings.fsync, after)
        return
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        # The position in the journal is not known: these segments lie behind it, wherever it is.
        yield Store(Path(folder), settings.fsync, int(time.time()), problem)
