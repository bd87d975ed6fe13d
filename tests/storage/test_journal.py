import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage import journal
from storage.errors import JournalDown
from storage.journal import JournalReader, JournalWriter, Kind, Record, segment_path, segments
from storage.tail import Position

HEADER = 45
"""Bytes before each payload."""


def name(number: int) -> str:
    return f"{number:032x}"


def read_all(reader: JournalReader) -> list[Record]:
    found: list[Record] = []
    while records := reader.read():
        found += records
    return found


def payloads(reader: JournalReader) -> list[bytes]:
    return [record.payload for record in read_all(reader)]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk that is full: no file of this process may grow beyond ``size`` bytes. (SIGXFSZ is ignored by Python.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    reader = JournalReader(tmp_path, writer.tail)
    assert reader.read() == []
    writer.append((Kind.START, name(1), b"head", b"", b"body"))
    writer.append((Kind.END, name(2), b"\x00\xff"))
    first, second = reader.read()
    assert (first.kind, first.id, first.payload, first.segment) == (Kind.START, name(1), b"headbody", 1)
    assert first.end == Position(1, HEADER + 8)
    assert (second.kind, second.id, second.payload) == (Kind.END, name(2), b"\x00\xff")
    assert second.end == reader.position == writer.tail.position == Position(1, 2 * HEADER + 10)
    assert reader.read() == []
    writer.close()


def test_the_reader_follows_the_writer(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    reader = JournalReader(tmp_path, writer.tail)
    done = threading.Event()

    def write() -> None:
        for number in range(2000):
            writer.append((Kind.PIECE, name(number), b"x" * (number % 300)))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    found: list[Record] = []
    while not done.is_set() or len(found) < 2000:
        found += reader.read()
    thread.join()
    assert [record.id for record in found] == [name(number) for number in range(2000)]
    assert all(len(record.payload) == number % 300 for number, record in enumerate(found))
    writer.close()


@pytest.mark.parametrize("left", range(HEADER + 4))
def test_a_torn_tail_ends_its_segment_alone(tmp_path: Path, left: int) -> None:
    """A crash after any number of bytes of the second record: the first, and the next process's, are read."""
    dead = JournalWriter(tmp_path)
    dead.append((Kind.START, name(1), b"whole"))
    dead.append((Kind.END, name(1), b"torn"))
    dead.close()
    os.truncate(segment_path(tmp_path, 1), HEADER + 5 + left)
    writer = JournalWriter(tmp_path)
    assert writer.segment == 2
    writer.append((Kind.END, name(2), b"next"))
    assert payloads(JournalReader(tmp_path, writer.tail)) == [b"whole", b"next"]
    writer.close()


def test_a_record_with_wrong_bytes_is_not_read(tmp_path: Path) -> None:
    dead = JournalWriter(tmp_path)
    dead.append((Kind.START, name(1), b"whole"))
    dead.append((Kind.END, name(1), b"spoiled"))
    dead.close()
    data = segment_path(tmp_path, 1).read_bytes()
    segment_path(tmp_path, 1).write_bytes(data[:-3] + b"\x00\x00\x00")
    writer = JournalWriter(tmp_path)
    assert payloads(JournalReader(tmp_path, writer.tail)) == [b"whole"]
    writer.close()


def test_segments_roll_and_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 200)
    writer = JournalWriter(tmp_path)
    reader = JournalReader(tmp_path, writer.tail)
    for number in range(10):
        writer.append((Kind.PIECE, name(number), bytes([number]) * 55))  # 100 bytes each: two a segment
    assert segments(tmp_path) == [1, 2, 3, 4, 5]
    records = read_all(reader)
    assert [(record.payload[0], record.segment) for record in records] == [(n, n // 2 + 1) for n in range(10)]
    reader.delete_before(4)
    assert segments(tmp_path) == [4, 5]
    writer.close()


def test_a_new_writer_never_takes_a_number_again(tmp_path: Path) -> None:
    first = JournalWriter(tmp_path)
    first.append((Kind.END, name(1), b""))
    first.close()
    assert JournalWriter(tmp_path).segment == 2
    assert JournalWriter(tmp_path, after=7).segment == 8


def test_a_record_larger_than_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_READ_BYTES", 1000)
    writer = JournalWriter(tmp_path)
    writer.append((Kind.START, name(1), b"small"))
    writer.append((Kind.PIECE, name(1), os.urandom(10_500)))
    writer.append((Kind.END, name(1), b"end"))
    found = read_all(JournalReader(tmp_path, writer.tail))
    assert [len(record.payload) for record in found] == [5, 10_500, 3]
    writer.close()


@pytest.mark.parametrize("room", [0, 1, HEADER - 1, HEADER, HEADER + 50, HEADER + 99])
def test_a_full_disk_leaves_nothing_torn(tmp_path: Path, room: int) -> None:
    writer = JournalWriter(tmp_path)
    reader = JournalReader(tmp_path, writer.tail)
    writer.append((Kind.START, name(1), b"before"))
    size = HEADER + 6
    with largest_file(size + room), pytest.raises(JournalDown, match="takes no records"):
        writer.append((Kind.PIECE, name(1), b"x" * 100))
    assert segment_path(tmp_path, 1).stat().st_size == size
    writer.append((Kind.END, name(1), b"after"))
    assert payloads(reader) == [b"before", b"after"]
    writer.close()


def test_a_reader_does_not_see_a_record_that_is_cut_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader comes by between the short write and its repair."""
    writer = JournalWriter(tmp_path)
    reader = JournalReader(tmp_path, writer.tail)
    truncate = os.ftruncate
    seen: list[int] = []
    comes_by = threading.Thread(target=lambda: seen.append(len(reader.read())))

    def late(file: int, size: int) -> None:
        assert segment_path(tmp_path, 1).stat().st_size == 60
        comes_by.start()
        comes_by.join(0.2)
        truncate(file, size)

    monkeypatch.setattr(os, "ftruncate", late)
    with largest_file(60), pytest.raises(JournalDown):
        writer.append((Kind.PIECE, name(1), b"x" * 100))
    comes_by.join()
    assert seen == [0]
    writer.append((Kind.END, name(1), b"after"))
    assert payloads(reader) == [b"after"]
    writer.close()


def test_where_the_torn_record_cannot_be_cut_off_a_new_segment_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path)
    reader = JournalReader(tmp_path, writer.tail)
    writer.append((Kind.START, name(1), b"before"))

    def fails(file: int, size: int) -> None:
        raise OSError(errno.EIO, "no more")

    monkeypatch.setattr(os, "ftruncate", fails)
    with largest_file(HEADER + 6 + 20), pytest.raises(JournalDown):
        writer.append((Kind.PIECE, name(1), b"x" * 100))
    assert payloads(reader) == [b"before"]
    writer.append((Kind.END, name(1), b"after"))
    assert segments(tmp_path) == [1, 2]
    assert payloads(reader) == [b"after"]
    writer.close()


def test_a_closed_journal_is_down(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(JournalDown, match="is closed"):
        writer.append((Kind.END, name(1), b""))
    assert segments(tmp_path) == []


def test_the_journal_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "journal"
    writer = JournalWriter(folder)
    writer.append((Kind.START, name(1), b"kept"))
    paths = (folder.parent, folder, segment_path(folder, 1))
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700, 0o700, 0o600]
    writer.close()


def test_a_writer_that_records_nothing_leaves_no_segment(tmp_path: Path) -> None:
    for _ in range(3):
        writer = JournalWriter(tmp_path)
        reader = JournalReader(tmp_path, writer.tail)
        assert (writer.segment, reader.read(), segments(tmp_path)) == (1, [], [])
        writer.close()


def test_a_segment_that_could_not_be_begun_is_begun_later(tmp_path: Path) -> None:
    folder, away = tmp_path / "journal", tmp_path / "away"
    writer = JournalWriter(folder)
    reader = JournalReader(folder, writer.tail)
    folder.rename(away)
    with pytest.raises(JournalDown, match="No such file"):
        writer.append((Kind.END, name(1), b"lost"))
    assert reader.read() == []
    away.rename(folder)
    writer.append((Kind.END, name(2), b"kept"))
    assert payloads(reader) == [b"kept"]
    writer.close()


def test_any_number_of_empty_segments_is_passed_over(tmp_path: Path) -> None:
    for number in range(1, 2001):
        segment_path(tmp_path, number).touch()
    writer = JournalWriter(tmp_path)
    reader = JournalReader(tmp_path, writer.tail)
    assert reader.read() == []
    writer.append((Kind.END, name(1), b"behind them"))
    assert payloads(reader) == [b"behind them"]
    writer.close()


_WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
from storage.journal import JournalWriter, Kind
writer = JournalWriter(Path(sys.argv[1]))
number = 0
while True:
    writer.append((Kind.PIECE, f"{number:032x}", b"x" * 3000))
    print(number, flush=True)
    number += 1
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _WRITE_UNTIL_KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(200)]
    child.kill()
    told += [int(line) for line in child.stdout.read().split()]
    child.wait()
    child.stdout.close()
    writer = JournalWriter(tmp_path)
    found = [int(record.id, 16) for record in read_all(JournalReader(tmp_path, writer.tail))]
    assert found[: len(told)] == told
    assert len(found) - len(told) in (0, 1)
    writer.close()


def test_a_full_segment_is_synced_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 200)
    synced: list[str] = []
    writer = JournalWriter(tmp_path, fsync=lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    writer.sync()
    synced.clear()
    for number in range(5):
        writer.append((Kind.PIECE, name(number), b"x" * 55))  # two a segment
    writer.sync()
    assert synced == [f"{n:012d}.segment" for n in (1, 2, 3)] + [tmp_path.name, tmp_path.parent.name]
    writer.append((Kind.PIECE, name(5), b""))
    writer.sync()
    assert synced[5:] == ["000000000003.segment"]
    writer.close()


def test_after_a_failed_sync_a_new_segment_begins(tmp_path: Path) -> None:
    """A second fsync of the file would succeed, and say nothing about what the first could not write."""
    fails = [True]

    def fsync(file: int) -> None:
        if fails.pop():
            raise OSError(errno.EIO, "no more")

    writer = JournalWriter(tmp_path, fsync=fsync)
    reader = JournalReader(tmp_path, writer.tail)
    writer.append((Kind.START, name(1), b"unsure"))
    with pytest.raises(JournalDown, match="does not confirm"):
        writer.sync()
    writer.append((Kind.END, name(1), b"after"))
    assert segments(tmp_path) == [1, 2]
    assert payloads(reader) == [b"unsure", b"after"]
    fails += [False] * 4
    writer.sync()
    writer.close()
