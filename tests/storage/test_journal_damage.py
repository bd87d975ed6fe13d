"""A journal that somebody or something damaged: what can still be read is kept."""

import errno
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.journal import JournalReader, JournalWriter, Kind, segment_path, segments
from tests.storage.test_journal import HEADER, name, payloads


def spoil_payload(data: bytearray, at: int) -> None:
    data[at + HEADER] ^= 1


def spoil_kind(data: bytearray, at: int) -> None:
    data[at + 4] ^= 1


def spoil_id(data: bytearray, at: int) -> None:
    data[at + 5] ^= 1


def spoil_id_beyond_utf8(data: bytearray, at: int) -> None:
    data[at + 5] = 0xFF


def spoil_length(data: bytearray, at: int) -> None:
    data[at + 40] = 0x7F


def spoil_magic(data: bytearray, at: int) -> None:
    data[at] ^= 1


def spoil_all(data: bytearray, at: int) -> None:
    data[at : at + HEADER] = bytes(HEADER)


@pytest.mark.parametrize(
    "spoil",
    [spoil_payload, spoil_kind, spoil_id, spoil_id_beyond_utf8, spoil_length, spoil_magic, spoil_all],
)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_behind_a_damaged_record_the_others_are_read(
    tmp_path: Path, spoil: Callable[[bytearray, int], None], number: int
) -> None:
    dead = JournalWriter(tmp_path)
    for text in (b"one", b"two", b"six", b"ten"):
        dead.append((Kind.PIECE, name(1), text))
    dead.close()
    data = bytearray(segment_path(tmp_path, 1).read_bytes())
    at = number * (HEADER + 3)
    spoil(data, at)
    segment_path(tmp_path, 1).write_bytes(data)
    writer = JournalWriter(tmp_path)
    writer.append((Kind.PIECE, name(1), b"new"))
    reader = JournalReader(tmp_path, writer.tail)
    left = [b"one", b"two", b"six", b"ten", b"new"]
    del left[number]
    assert payloads(reader) == left
    torn = number == 3 and spoil is spoil_length  # which nobody can tell from a record that was cut off
    assert reader.losses == (0 if torn else 1)
    if not torn:
        assert (tmp_path / "lost" / f"{1:012d}-{at}").read_bytes() == data[at : at + HEADER + 3]
    writer.close()


@pytest.mark.parametrize(
    ("magic", "checksum"),
    [(b"SLJ1", zlib.crc32(b"old")), (b"SLJ2", zlib.crc32(b"old", zlib.crc32(name(1).encode(), Kind.PIECE)))],
)
def test_a_journal_of_an_older_version_is_read(tmp_path: Path, magic: bytes, checksum: int) -> None:
    """Its checksums are zlib's."""
    record = struct.pack("<4sB32sII", magic, Kind.PIECE, name(1).encode(), 3, checksum) + b"old"
    segment_path(tmp_path, 1).write_bytes(record)
    writer = JournalWriter(tmp_path)
    writer.append((Kind.PIECE, name(1), b"new"))
    assert payloads(JournalReader(tmp_path, writer.tail)) == [b"old", b"new"]
    writer.close()


def test_a_file_that_is_no_segment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "copy of 1.segment").write_bytes(b"?")
    writer = JournalWriter(tmp_path)
    writer.append((Kind.PIECE, name(1), b"new"))
    assert writer.segment == 1
    assert payloads(JournalReader(tmp_path, writer.tail)) == [b"new"]
    writer.close()


@pytest.mark.parametrize("read_before", [True, False])
def test_after_a_segment_was_deleted_under_way_a_new_one_begins(tmp_path: Path, read_before: bool) -> None:
    folder = tmp_path / "journal"
    writer = JournalWriter(folder)
    reader = JournalReader(folder, writer.tail)
    writer.append((Kind.PIECE, name(1), b"old"))
    if read_before:
        assert payloads(reader) == [b"old"]
    shutil.rmtree(folder)
    writer.append((Kind.PIECE, name(1), b"lost"))
    assert writer.leave_deleted()
    assert not writer.leave_deleted(), "it has no file yet"
    assert payloads(reader) == []
    assert reader.losses == 1
    writer.append((Kind.PIECE, name(1), b"new"))
    assert payloads(reader) == [b"new"]
    writer.close()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_length_without_measure_holds_up_nothing_in_the_segment_that_is_written(tmp_path: Path, number: int) -> None:
    """The reader waits for gigabytes that never come, but no longer than until the next record."""
    writer = JournalWriter(tmp_path)
    reader = JournalReader(tmp_path, writer.tail)
    texts = [b"one", b"two", b"six"]
    for text in texts:
        writer.append((Kind.PIECE, name(1), text))
    with segment_path(tmp_path, 1).open("r+b") as file:
        file.seek(number * (HEADER + 3) + 37)
        file.write(struct.pack("<I", 3_000_000_000))
    last = number == 2
    del texts[number]
    assert payloads(reader) == texts
    assert (reader.losses, payloads(reader)) == (0 if last else 1, [])
    writer.append((Kind.PIECE, name(1), b"new"), (Kind.PIECE, name(1), b"newer"))
    assert payloads(reader) == [b"new", b"newer"]
    assert reader.losses == 1
    assert len((tmp_path / "lost" / f"{1:012d}-{number * (HEADER + 3)}").read_bytes()) == HEADER + 3
    writer.close()


def test_a_folder_that_is_named_as_a_segment_is_none(tmp_path: Path) -> None:
    dead = JournalWriter(tmp_path)
    dead.append((Kind.PIECE, name(1), b"old"))
    dead.close()
    for number in (0, 3, 7):
        segment_path(tmp_path, number).mkdir()
    (tmp_path / "5.segment").write_bytes(b"?")
    writer = JournalWriter(tmp_path)
    assert writer.segment == 8, "its name is taken all the same"
    writer.append((Kind.PIECE, name(1), b"new"))
    reader = JournalReader(tmp_path, writer.tail)
    assert payloads(reader) == [b"old", b"new"]
    reader.delete_before(9)
    assert (reader.losses, segments(tmp_path)) == (0, [])
    assert segment_path(tmp_path, 7).is_dir()
    writer.close()


class Undeleting(JournalReader):
    """As where the folder belongs to somebody else: tests run as root, which nothing keeps out."""

    tried = 0

    def _delete(self, segment: int) -> None:
        self.tried += 1
        raise PermissionError(errno.EACCES, "Permission denied", str(segment))


def test_a_segment_that_cannot_be_deleted_stays_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead = JournalWriter(tmp_path)
    dead.append((Kind.PIECE, name(1), b"old"))
    dead.close()
    writer = JournalWriter(tmp_path)
    reader = Undeleting(tmp_path, writer.tail)
    assert payloads(reader) == [b"old"]
    for _ in range(3):
        reader.delete_before(2)
    assert reader.tried == 1
    assert "a segment that is in the database stays: [Errno 13] Permission denied: '1'" in caplog.text
    writer.append((Kind.PIECE, name(1), b"new"))
    assert payloads(reader) == [b"new"]
    writer.close()
