"""The WAL stays short, and is short again after somebody has read for long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage import database, figures, upkeep
from storage.database import Database
from storage.retention import Keep
from storage.upkeep import Upkeep
from tests.storage.recorded import Recorded, call_start


def wal(recorded: Recorded) -> int:
    return figures.read(recorded.folder, recorded.db).wal_bytes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorded:
    """A data folder whose WAL is too long from a megabyte on."""
    for module in (database, upkeep):
        monkeypatch.setattr(module, "WAL_BYTES", 1_000_000)
    return Recorded(tmp_path / "data")


def write(recorded: Recorded, megabytes: int) -> None:
    for number in range(megabytes):
        start = call_start(f"s{number}")
        recorded.begin(start, [])
        noise = b"".join(b"%x" % (n * n * 2654435761 % 2**64) for n in range(63_000))
        recorded.piece(start, noise)  # does not deflate
        recorded.finish(start)
        recorded.take_in()


def test_a_reader_that_stays_is_named_and_the_wal_is_cut_back_after_it(small: Recorded) -> None:
    recorded, upkeep = small, small.ingestion._upkeep
    reader = Database(recorded.folder)
    reader.execute("BEGIN")
    assert reader.number("SELECT count(*) FROM calls") == 0
    write(recorded, 8)
    assert wal(recorded) > 4_000_000
    recorded.ingestion._db.execute("PRAGMA busy_timeout = 120000")
    began = time.monotonic()
    upkeep.step()
    assert time.monotonic() - began < 60, "it waits for no reader"
    assert (
        "a program has been reading the database in one transaction for long" in recorded.ingestion.status.warnings[0]
    )
    assert wal(recorded) > 4_000_000
    reader.execute("COMMIT")
    upkeep._truncate_at = 0
    upkeep.step()
    assert recorded.ingestion.status.warnings == []
    assert wal(recorded) == 0
    reader.close()
    recorded.abandon()


def test_without_such_a_reader_the_wal_stays_short(small: Recorded) -> None:
    """Readers come and go, as the admin pages' do."""
    recorded = small
    for _ in range(20):
        write(recorded, 1)
        assert recorded.db.number("SELECT count(*) FROM calls")
        recorded.ingestion._upkeep._truncate_at = 0
        recorded.ingestion._upkeep.step()
        assert wal(recorded) < 5_000_000
    recorded.abandon()


def test_a_locked_database_is_looked_after_later(recorded: Recorded) -> None:
    start = recorded.call(call_start("s", scenario=None), "hello")
    recorded.close("s")
    recorded.take_in()
    db = recorded.ingestion._db
    db.execute("PRAGMA busy_timeout = 10")
    found = Upkeep(db, Keep(days=1e-9))
    with recorded.db.transaction():
        recorded.db.insert("switches", name="a", value="1")
        found.step()
    assert list(recorded.outcomes()) == [start.id]
    found.step()
    assert list(recorded.outcomes()) == [start.id], "not at once"
    found._retain_at = 0
    for _ in range(3):
        found.step()
    assert recorded.outcomes() == {}
