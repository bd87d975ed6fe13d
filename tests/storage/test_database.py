import subprocess
import sys
import threading
from pathlib import Path

import pysqlite3 as sqlite3
import pytest

from storage import migrations
from storage.database import OLDEST_SQLITE, Database, OperationalError
from storage.errors import NewerDatabase, StorageError
from storage.states import CallOutcome, ClosedBy, SessionState
from storage.types import TaggedBy


def schema(db: Database) -> list[str]:
    return [row["sql"] for row in db.all("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")]


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    first = Database(tmp_path)
    first.insert("switches", name="kept", value="1")
    second = Database(tmp_path, checkpoints=True)
    assert schema(second) == schema(first)
    assert second.number("SELECT count(*) FROM _sqlite_migrations") == len(migrations.ALL)
    assert second.number("SELECT count(*) FROM switches") == 1
    assert second.number("SELECT count(*) FROM journal_position") == 1
    first.close()
    second.close()


def test_only_a_database_that_lacks_a_migration_costs_the_import_of_the_library(tmp_path: Path) -> None:
    """It takes a second, and more where pandas is installed; the ingestion is a process that starts often."""
    program = (
        "import sys; from pathlib import Path; from storage.database import Database\n"
        f"Database(Path({str(tmp_path)!r})).close(); print('sqlite_utils' in sys.modules)"
    )
    told = [subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in range(2)]
    assert told == [b"True\n", b"False\n"]


def test_the_pragmas_hold(tmp_path: Path) -> None:
    trainer, proxy = Database(tmp_path), Database(tmp_path, checkpoints=True)
    first = trainer.first("PRAGMA journal_mode")
    assert first is not None
    assert first[0] == "wal"
    assert (trainer.number("PRAGMA foreign_keys"), trainer.number("PRAGMA synchronous")) == (1, 1)
    assert (trainer.number("PRAGMA wal_autocheckpoint"), proxy.number("PRAGMA wal_autocheckpoint")) == (0, 1000)
    assert (trainer.number("PRAGMA auto_vacuum"), proxy.number("PRAGMA journal_size_limit")) == (2, 64 * 2**20)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    trainer.close()
    proxy.close()


def test_processes_that_open_a_new_database_at_once(tmp_path: Path) -> None:
    """Thirty times, three processes at the same moment: each finds it whole."""
    program = Path(__file__).parent / "open_at_once.py"
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["1"] * 90


def test_a_newer_database_is_refused_in_words(tmp_path: Path) -> None:
    db = Database(tmp_path)
    db.insert("_sqlite_migrations", migration_set="slipstream", name="999_flying", applied_at="2030-01-01")
    db.close()
    with pytest.raises(
        NewerDatabase, match=r"slipstream\.db was written by a newer Slipstream \(it holds 999_flying\)"
    ):
        Database(tmp_path)


def test_an_old_sqlite_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(sqlite3.sqlite_version_info) >= OLDEST_SQLITE
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.40.1")
    with pytest.raises(StorageError, match=r"SQLite 3\.40\.1 can lose .* 3\.51\.3 or newer .* pysqlite3"):
        Database(tmp_path)


def test_a_transaction_is_all_or_nothing(db: Database) -> None:
    def fail() -> None:
        with db.transaction():
            db.insert("switches", name="a", value="1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert db.number("SELECT count(*) FROM switches") == 0
    with db.transaction():
        db.insert("switches", name="a", value="1")
    assert db.number("SELECT count(*) FROM switches") == 1


def test_after_a_commit_that_fails_the_connection_works(tmp_path: Path) -> None:
    db = Database(tmp_path)

    def too_much() -> None:
        with db.transaction():
            # A foreign key that holds no longer fails at the commit, when it is deferred.
            db.execute("PRAGMA defer_foreign_keys = 1")
            db.insert("group_members", session=1, group="nobody")

    with pytest.raises(sqlite3.IntegrityError):
        too_much()
    with db.transaction():
        db.insert("switches", name="a", value="1")
    assert db.number("SELECT count(*) FROM switches") == 1
    db.close()


def test_a_transaction_holds_the_write_lock_from_its_start(tmp_path: Path) -> None:
    one, two = Database(tmp_path), Database(tmp_path)
    two.execute("PRAGMA busy_timeout = 10")
    with one.transaction(), pytest.raises(OperationalError, match="locked"), two.transaction():
        pass
    with two.transaction():
        two.insert("switches", name="a", value="1")
    one.close()
    two.close()


def test_a_waiting_writer_gets_its_turn(tmp_path: Path) -> None:
    one, two = Database(tmp_path), Database(tmp_path)
    one.conn.execute("BEGIN IMMEDIATE")
    thread = threading.Timer(0.2, lambda: one.conn.execute("COMMIT"))
    thread.start()
    with two.transaction():
        two.insert("switches", name="a", value="1")
    thread.join()
    assert one.number("SELECT count(*) FROM switches") == 1
    one.close()
    two.close()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, "null"),
        (True, 1),
        (b"\0\xff", b"\0\xff"),
        *((kind, str(kind.value)) for kind in (*CallOutcome, *ClosedBy, *SessionState, *TaggedBy)),
    ],
)
def test_a_parameter_is_bound_as_what_it_is_without_a_search_for_how(
    tmp_path: Path, given: object, kept: object
) -> None:
    assert (type(given), sqlite3.PrepareProtocol) in sqlite3.adapters
    db = Database(tmp_path)
    row = db.first("SELECT coalesce(?1, typeof(?1))", (given,))
    assert row is not None
    assert (row[0], type(row[0])) == (kept, type(kept))
    db.close()
