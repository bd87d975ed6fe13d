"""The one way to the database file: a connection, its pragmas, its migrations and its transactions."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pysqlite3 as sqlite3

from storage import migrations
from storage.errors import NewerDatabase, StorageError, Unreadable
from storage.folders import make_private
from storage.states import CallOutcome, ClosedBy, SessionState
from storage.types import TaggedBy

FILE = "slipstream.db"
# The fault that lets two writers lose a committed transaction stands in 3.7.0 to 3.51.2.
OLDEST_SQLITE = (3, 51, 3)
_BUSY_SECONDS = 30
WAL_BYTES = 64 * 1024 * 1024
"""A WAL that grew beyond this while somebody read is cut back to it."""

for _kind, _adapt in (
    (bytes, bytes),
    (bool, int),
    (type(None), {}.get),
    *((kind, attrgetter("value")) for kind in (CallOutcome, ClosedBy, SessionState, TaggedBy)),
):
    # sqlite3 looks for a way to adapt each parameter that is no plain number or text; told one, it finds it five times
    # as fast, which is a tenth of what it costs to take in a call.
    sqlite3.register_adapter(_kind, _adapt)

Row = Any
"""A `sqlite3.Row`: columns by name and by position."""


class Database:
    """A connection to `slipstream.db` in the data folder. Use one per thread.

    Raises `Unreadable` where it cannot be opened. Only the ingestion checkpoints the WAL (``checkpoints=True``); see
    docs/architecture.md. With ``durable`` what was committed survives a loss of power.
    """

    def __init__(self, folder: Path, *, checkpoints: bool = False, durable: bool = False) -> None:
        _check_sqlite()
        make_private(folder)
        self.path = folder / FILE
        try:
            self.conn = sqlite3.connect(
                str(self.path), timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._open(folder, checkpoints=checkpoints, durable=durable)
            except BaseException:
                self.conn.close()
                raise
        except (DatabaseError, OSError) as error:
            raise Unreadable(
                f"{self.path} cannot be used as the database ({error}): mend it, put a copy in its place, "
                "or move it away to begin a new one"
            ) from error

    def _open(self, folder: Path, *, checkpoints: bool, durable: bool) -> None:
        self.conn.row_factory = sqlite3.Row
        # Proxy and trainer may open a new database at the same moment: one of them turns it to WAL (SQLite does not
        # wait for the lock there) and migrates.
        with (folder / f".{FILE}.migrating").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.number("PRAGMA page_count"):
                # Only a new file takes it: in an older one the room of what is deleted is used again, not given back.
                self.conn.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self.conn.execute("PRAGMA journal_mode = WAL")
            self.conn.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            self.conn.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self.conn.execute("PRAGMA foreign_keys = ON")
            if not checkpoints:
                self.conn.execute("PRAGMA wal_autocheckpoint = 0")
            self._migrate()

    def _migrate(self) -> None:
        applied = self._migrations()
        if not migrations.ALL.keys() <= applied:
            migrations.apply(self.conn)
        if unknown := sorted(applied - migrations.ALL.keys()):
            raise NewerDatabase(
                f"{self.path} was written by a newer Slipstream (it holds {', '.join(unknown)}): upgrade this one"
            )

    def _migrations(self) -> set[str]:
        """The names of those that the database has had."""
        if not self.first("SELECT 1 FROM sqlite_master WHERE name = ?", (migrations.TABLE,)):
            return set()
        rows = self.all(f"SELECT name FROM {migrations.TABLE} WHERE migration_set = ?", (migrations.NAME,))
        return {row["name"] for row in rows}

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """One `BEGIN IMMEDIATE`: the write lock is taken at the start, so what is read inside still holds."""
        self.conn.execute("BEGIN IMMEDIATE")
        try:
            yield self
        except BaseException:
            self._roll_back()
            raise
        try:
            self.conn.execute("COMMIT")
        except BaseException:
            # A full disk fails here; what is left open would refuse every later transaction.
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self.conn.in_transaction:
            self.conn.execute("ROLLBACK")

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; returns the number of rows that it changed."""
        return int(self.conn.execute(sql, tuple(parameters)).rowcount)

    def insert(self, table: str, **values: Any) -> int:
        """Insert one row; returns its rowid."""
        cursor = self.conn.execute(_insertion(table, tuple(values)), tuple(values.values()))
        return int(cursor.lastrowid or 0)

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return list(self.conn.execute(sql, tuple(parameters)))

    def first(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        return self.conn.execute(sql, tuple(parameters)).fetchone()

    def number(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """The first column of the first row, as a number; 0 where there is none."""
        row = self.first(sql, parameters)
        return int(row[0] or 0) if row is not None else 0

    def close(self) -> None:
        self.conn.close()


@cache
def _insertion(table: str, columns: tuple[str, ...]) -> str:
    # Table and column names come from this package alone, never from outside.
    names = ", ".join(f'"{name}"' for name in columns)
    return f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" for _ in columns)})'


OperationalError: type[Exception] = sqlite3.OperationalError
"""Locked, full, unreadable: what passes by itself or by a person's hand."""
DatabaseError: type[Exception] = sqlite3.Error
"""Whatever SQLite raises, a damaged file among it."""


def is_of_the_database(error: Exception) -> bool:
    """Whether an error says something of the database (locked, full, damaged), and nothing of the row."""
    # A damaged file raises `sqlite3.DatabaseError` itself, a row that cannot be taken one of its subclasses.
    return isinstance(error, (OperationalError, OSError)) or type(error) is sqlite3.DatabaseError


def _check_sqlite() -> None:
    found = tuple(sqlite3.sqlite_version_info)
    if found < OLDEST_SQLITE:
        raise StorageError(
            f"SQLite {sqlite3.sqlite_version} can lose committed transactions in WAL mode; "
            f"3.51.3 or newer is needed: install the package pysqlite3 (./scripts/setup does)"
        )
