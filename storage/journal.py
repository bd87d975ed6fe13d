"""The journal: an append-only record of what happened, written before anyone is told that it is safe.

A segment is a file ``<number>.segment`` of records. A record is a header (magic, kind, id, length, checksum) and
its payload. Records that are appended together are one `writev`. A record that was cut off by a crash or a full disk
fails its length or its checksum and ends its segment. One that was damaged later is passed over: what cannot be read
is kept in ``lost/``, and reading goes on with the next record that is whole.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from zlib_ng import zlib_ng

from storage.errors import JournalDown
from storage.folders import make_private
from storage.tail import Position, Tail

_log = logging.getLogger("slipstream.journal")

SUFFIX = ".segment"
_SEGMENT_BYTES = 32 * 1024 * 1024
_READ_BYTES = 4 * 1024 * 1024
_MAX_PARTS = 1024
"""Of one `writev` (IOV_MAX)."""
_HEADER = struct.Struct("<4sB32sII")
_MAGIC = b"SLJ2"
_OLDER = b"SLJ1"
"""The checksum is of the payload alone."""


class Kind(IntEnum):
    START = 1
    PIECE = 2
    CAPTURE = 3
    END = 4
    REWARD = 5
    CLOSE = 6


_KINDS = {int(kind): kind for kind in Kind}

Entry = tuple[Kind, str, *tuple[bytes, ...]]
"""A record to be appended: what it is, of which call (or an id of its own), and the parts of its payload."""


class Record(NamedTuple):
    kind: Kind
    id: str
    payload: bytes
    segment: int
    offset: int
    """Where the next record begins."""

    @property
    def end(self) -> Position:
        return Position(self.segment, self.offset)


def segments(folder: Path) -> list[int]:
    """The numbers of the segments in ``folder``, oldest first."""
    # A copy that somebody laid beside them is none, nor is a folder.
    return sorted(number for number in _numbers(folder) if segment_path(folder, number).is_file())


def _numbers(folder: Path) -> Iterator[int]:
    """The numbers that are taken, whatever it is that has them."""
    return (int(path.stem) for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}{SUFFIX}"


class JournalWriter:
    """Appends records. One per process that records; it begins a segment of its own.

    Thread-safe. `append` raises `JournalDown` when the records could not be written whole; what was written
    of them is cut off again, so the next `append` may succeed (the disk has room again). A segment's file comes with
    its first record, so that a process that dies before it has recorded anything leaves none.

    An append survives the death of the process. With ``fsync`` (`os.fsync`; tests give their own), `sync` makes it
    survive a loss of power, too; without, `sync` does nothing.
    """

    def __init__(self, folder: Path, *, after: int = 0, fsync: Callable[[int], None] | None = None) -> None:
        make_private(folder)
        self._folder = folder
        self._fsync = fsync
        self._ended: list[int] = []
        """Segments' files that are full, and not yet synced."""
        self._begun = True
        """A segment has begun since the folder was synced."""
        self._lock = threading.Lock()
        self.segment = max([after, *_numbers(folder)]) + 1
        self._file = -1
        """-1: not begun."""
        self._size = 0
        self._spoiled = False
        """Nothing more may be appended to the segment."""
        self._closed = False
        self.tail = Tail.begin(self.segment)
        """How far its reader may read."""

    def append(self, *entries: Entry) -> None:
        """Append records, all of them or none, in one write."""
        parts: list[bytes] = []
        size = 0
        for kind, record_id, *payload in entries:
            named = record_id.encode()
            length, checksum = 0, zlib_ng.crc32(named, kind)
            for part in payload:
                length += len(part)
                checksum = zlib_ng.crc32(part, checksum)
            parts.append(_HEADER.pack(_MAGIC, kind, named, length, checksum))
            parts += payload
            size += _HEADER.size + length
        if len(parts) > _MAX_PARTS:
            parts = [b"".join(parts)]
        with self._lock:
            if self._closed:
                raise JournalDown(f"the journal in {self._folder} is closed")
            try:
                if self._file < 0:
                    self._begin(self.segment)
                elif self._size >= _SEGMENT_BYTES or self._spoiled:
                    self._begin(self.segment + 1)
                written = os.writev(self._file, parts)
                if written != size:
                    raise OSError(f"only {written} of {size} bytes were written")
            except OSError as error:
                if self._file >= 0:
                    self._cut_off()
                raise JournalDown(f"the journal in {self._folder} takes no records: {error}") from error
            self._size += written
            self.tail.move(self.segment, self._size)

    def _cut_off(self) -> None:
        """Take records that were not written whole out of the segment; where that fails, the segment ends with it."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._spoiled = True

    @property
    def durable(self) -> bool:
        """Whether `sync` is to be called before anyone is told that a record is safe."""
        return self._fsync is not None

    def sync(self) -> None:
        """Return when all that was appended before this call is on the disk. Blocks; call it in a thread.

        Appends go on meanwhile. Raises `JournalDown` when the disk does not confirm; what was appended is still
        read by the ingestion, and the next record begins a new segment, since a second fsync of the same file would
        say nothing about what the first one could not write.
        """
        if self._fsync is None:
            return
        with self._lock:
            # Copies, so that the writer may close its own meanwhile.
            files = [*self._ended, *([os.dup(self._file)] if self._file >= 0 else [])]
            segment, begun = self.segment, self._begun
            self._ended, self._begun = [], False
        try:
            for file in files:
                self._fsync(file)
            if begun:
                for folder in (self._folder, self._folder.parent):
                    self._sync_folder(folder)
        except OSError as error:
            with self._lock:
                self._begun = True
                self._spoiled = self._spoiled or self.segment == segment
            raise JournalDown(f"the disk of {self._folder} does not confirm what was written: {error}") from error
        finally:
            for file in files:
                os.close(file)

    def _sync_folder(self, folder: Path) -> None:
        """The folder's entries, without which a new file is lost whatever is in it."""
        assert self._fsync is not None
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._fsync(file)
        finally:
            os.close(file)

    def _begin(self, segment: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        file = os.open(segment_path(self._folder, segment), flags, 0o600)
        if self._file >= 0:
            if self.durable:
                self._ended.append(self._file)
            else:
                os.close(self._file)
        self._file, self._size, self._spoiled = file, 0, False
        self.segment = segment
        self._begun = True

    def leave_deleted(self) -> bool:
        """Whether the segment's file was deleted while it was written; then a new one begins with the next record.

        To be asked now and then: the appends themselves succeed, and are lost.
        """
        with self._lock:
            if self._file < 0 or os.fstat(self._file).st_nlink:
                return False
            make_private(self._folder)
            os.close(self._file)
            self._file, self._size, self._spoiled = -1, 0, False
            self.segment += 1
            self.tail.move(self.segment, 0)
            return True

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for file in (*self._ended, *([self._file] if self._file >= 0 else [])):
                os.close(file)
            self._ended, self._file = [], -1
            self.tail.close()


class JournalReader:
    """Reads the records of all segments in order, following the one that is being written."""

    def __init__(self, folder: Path, tail: Tail) -> None:
        """``tail``: its writer's, who may be another process."""
        self._folder = folder
        self._tail = tail
        self.segment = min(segments(folder), default=tail.position.segment)
        self._offset = 0
        self._rest = b""
        self._deleted_before = 0
        """What could be deleted below this segment has been."""
        self.losses = 0
        """Places that could not be read."""
        self._kept: set[int] = set()
        """Segments that could not be deleted."""

    @property
    def position(self) -> Position:
        return Position(self.segment, self._offset)

    def read(self) -> list[Record]:
        """The next records, in order; empty when everything that was appended has been read."""
        while True:
            # Asked before reading: what is appended later is left for the next call, never lost. And what lies
            # behind the writer's position may be a record that it is about to cut off again.
            end = self._tail.position
            finished = self.segment < end.segment
            at = self._offset + len(self._rest)
            if not finished and at == end.offset and not self._rest:
                return []  # nothing came; of the first record the file may not be there yet
            more = self._read(at, _READ_BYTES if finished else min(_READ_BYTES, max(0, end.offset - at)))
            data = self._rest + more
            records, used = self._parse(data)
            grew = len(data) > len(self._rest)
            self._rest = data[used:]
            self._offset += used
            if records:
                return records
            if not grew and self._rest and self._pass_over():
                continue
            if finished and not grew:
                # What is left is a record that a crash cut off.
                later = (number for number in segments(self._folder) if number > self.segment)
                self.segment = min(later, default=end.segment)
                self._offset, self._rest = 0, b""
            elif not grew:
                return []

    def _read(self, at: int, size: int) -> bytes:
        try:
            with segment_path(self._folder, self.segment).open("rb") as file:
                file.seek(at)
                return file.read(size)
        except FileNotFoundError:
            gone = segment_path(self._folder, self.segment)
            if self.segment >= self._tail.position.segment or not self._folder.exists():
                raise  # it may come back, or the writer leaves it
            _log.error("%s was deleted before it was in the database", gone)
            self.losses += 1
            return b""

    def _pass_over(self) -> bool:
        """Go on behind what is damaged, with the next whole record; whether there was anything to pass over."""
        at = next((at for at in _found(self._rest, _MAGIC, _OLDER) if self._parse(self._rest[at:])[0]), 0)
        if not at:
            if _is_cut_off(self._rest) or self.segment == self._tail.position.segment:
                return False
            at = len(self._rest)
        folder = self._folder / "lost"
        folder.mkdir(mode=0o700, exist_ok=True)
        lost = folder / f"{self.segment:012d}-{self._offset}"
        lost.write_bytes(self._rest[:at])
        _log.error("%d bytes of segment %d cannot be read, they are kept in %s", at, self.segment, lost)
        self._offset += at
        self._rest = self._rest[at:]
        self.losses += 1
        return True

    def _parse(self, data: bytes) -> tuple[list[Record], int]:
        records: list[Record] = []
        at, begin, segment, checksum_of = 0, self._offset, self.segment, zlib_ng.crc32
        while len(data) - at >= _HEADER.size:
            magic, number, raw_id, length, checksum = _HEADER.unpack_from(data, at)
            start = at + _HEADER.size
            end = start + length
            if magic not in (_MAGIC, _OLDER) or number not in _KINDS or end > len(data):
                break
            payload = data[start:end]
            if checksum_of(payload, checksum_of(raw_id, number) if magic == _MAGIC else 0) != checksum:
                break
            records.append(Record(_KINDS[number], raw_id.decode(), payload, segment, begin + end))
            at = end
        return records, at

    def delete_before(self, segment: int) -> None:
        """Remove the segments below ``segment``: all that was in them is in the database."""
        if segment == self._deleted_before:
            return
        for number in segments(self._folder):
            if number < segment and number not in self._kept:
                try:
                    self._delete(number)
                except OSError as error:
                    _log.error("a segment that is in the database stays: %s; delete it, or start anew", error)
                    self._kept.add(number)
        self._deleted_before = segment

    def _delete(self, segment: int) -> None:
        segment_path(self._folder, segment).unlink()


def _found(data: bytes, *wanted: bytes) -> Iterator[int]:
    """Where one of ``wanted`` stands in ``data``, but at its beginning."""
    at = 0
    while places := [place for one in wanted if (place := data.find(one, at + 1)) > 0]:
        at = min(places)
        yield at


def _is_cut_off(data: bytes) -> bool:
    """Whether ``data`` is the beginning of a record, as a crash in its write leaves it."""
    if len(data) < _HEADER.size:
        return True
    magic, _, _, length, _ = _HEADER.unpack_from(data)
    return magic in (_MAGIC, _OLDER) and _HEADER.size + length > len(data)
