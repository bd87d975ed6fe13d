"""From the journal into the database: once, in order, in batches, in a process of its own (`proxy/ingesting.py`).

The position in the journal is written in the transaction that takes the records in. After a restart the reader
begins at the oldest segment that is left: records before the position only rebuild the calls that were under way.
A batch that the database refuses is bisected: the row that it cannot take is kept in ``journal/refused/``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage import calls, rewards, sessions
from storage.call_writer import CallWriter, RecordedCall
from storage.calls import Reading
from storage.database import Database, DatabaseError, is_of_the_database
from storage.journal import JournalReader, Kind, Record
from storage.open_sessions import OpenSessions
from storage.records import unpack_close, unpack_end, unpack_reward, unpack_start
from storage.retention import EVERYTHING, Keep
from storage.states import CallOutcome
from storage.tail import Position, Tail
from storage.text import counted
from storage.types import CallEnd, CallId, CallStart, SessionKey, TaggedBy
from storage.upkeep import Upkeep

_log = logging.getLogger("slipstream.ingest")

_GATHER_SECONDS = 0.05
"""What comes meanwhile is taken in together: a transaction costs as much as several calls."""
_RETRY_SECONDS = 1.0
_BUSY_SECONDS = 5
"""What a lock holds up for longer is said, and tried again."""
_STOP_SECONDS = 5.0
"""What is not taken in by then is taken in at the next start."""

ReadCall = Callable[[CallStart, bytes, bytes], Reading]
"""What is readable in a request and its response: given by the proxy, whose dialects know."""


@dataclass(slots=True)
class _UnderWay:
    start: CallStart | None
    """None: the database refused it."""
    request: bytes
    segment: int
    session: SessionKey
    pieces: list[bytes] = field(default_factory=list)
    capture: bytes | None = None
    superseded: bool = False
    torn: bool = False
    """A part of it may be lost."""


@dataclass(frozen=True, slots=True)
class Status:
    """How the ingestion fares."""

    caught_up: bool = False
    """All that an earlier process left is in the database."""
    problem: str | None = None
    """Why the database takes nothing at the moment; the journal keeps it meanwhile."""
    refused: int = 0
    """Records that the database refused for good; each is a file in ``journal/refused``."""
    lost: int = 0
    """Places of the journal that could not be read."""
    oversize: str | None = None
    """Why the database is larger than it should be."""

    @property
    def warnings(self) -> list[str]:
        """What is not as it should be, and stops nothing."""
        found = [self.oversize] if self.oversize else []
        if self.lost:
            found.append(
                f"{counted(self.lost, 'place')} of the journal could not be read: see the log and journal/lost"
            )
        return found


class Ingestion:
    """Takes the journal into SQLite. `run_once` is the whole work; `run` goes on with it as the journal grows."""

    def __init__(
        self, folder: Path, tail: Tail, read_call: ReadCall, keep: Keep = EVERYTHING, *, durable: bool = False
    ) -> None:
        """``tail``: of the journal's writer. ``durable``: what was recorded survives a loss of power."""
        # A segment is deleted when what was in it is in the database, which must then be as safe as it was there.
        self._db = Database(folder, checkpoints=True, durable=durable)
        self._db.execute(f"PRAGMA busy_timeout = {1000 * _BUSY_SECONDS}")
        self._upkeep = Upkeep(self._db, keep)
        self._own = tail.first
        """Segments before this one are an earlier process's: what is under way in them was interrupted."""
        self._journal_folder = folder / "journal"
        self._reader = JournalReader(self._journal_folder, tail)
        self._calls = CallWriter(self._db, read_call)
        self._open_sessions = OpenSessions(self._db)
        self._under_way: dict[str, _UnderWay] = {}
        row = self._db.first("SELECT segment, offset FROM journal_position")
        assert row is not None
        self._taken = Position(row["segment"], row["offset"])
        self._batch: list[Record] = []
        """Read, and not yet taken in or refused."""
        self.caught_up = False
        self.problem: str | None = None
        self.refused = 0

    @property
    def status(self) -> Status:
        return Status(self.caught_up, self.problem, self.refused, self._reader.losses, self._upkeep.problem)

    def close(self) -> None:
        self._db.close()

    def catch_up(self) -> None:
        """Take in what there is: what an earlier process left, too, of which the calls under way are marked.

        Where the database takes nothing at the moment, `problem` says so.
        """
        while self.run_once() and self.problem is None:
            pass

    def _interrupt_inherited(self) -> None:
        """The reader has passed the segments of earlier processes: nobody ends the calls that are under way in them."""
        for name, call in [(name, call) for name, call in self._under_way.items() if call.segment < self._own]:
            if call.start is None:
                self._keep_refused(name, _parts(call))
            elif not self._db.first("SELECT 1 FROM calls WHERE id = ?", (call.start.id,)):
                self._interrupt(call, call.start)
            del self._under_way[name]
        self.caught_up = True

    def _interrupt(self, call: _UnderWay, start: CallStart) -> None:
        try:
            with self._db.transaction():
                self._end(call, start, _interrupted(start))
        except Exception as error:
            self._forget()
            if is_of_the_database(error):
                raise
            _log.error("the database refused call %s: %r", start.id, error)
            self._keep_refused(start.id, _parts(call))
            self.refused += 1

    def run(self, stop: threading.Event, report: Callable[[Status], None]) -> None:
        """Take in what comes until ``stop``, then what is left, within seconds. ``report`` is told after each turn."""
        stop_by: float | None = None
        while True:
            stopping = stop.is_set()
            if stopping and stop_by is None:
                stop_by = time.monotonic() + _STOP_SECONDS
            more = self._turn(look_after=not stopping)
            report(self.status)
            if self.problem:
                if stopping or stop.wait(_RETRY_SECONDS):
                    return
            elif stop_by is not None:
                if not more or time.monotonic() >= stop_by:
                    return
            elif self.caught_up:  # until then somebody waits for it
                stop.wait(_GATHER_SECONDS)

    def _turn(self, *, look_after: bool) -> bool:
        """Returns whether there may be more to take in."""
        try:
            more = self.run_once()
            if look_after and not self.problem:
                self._upkeep.step()
        except Exception as error:  # noqa: BLE001 - the edge of the loop: said, and tried again
            more = True
            problem = f"the database takes nothing from the journal: {type(error).__name__}: {error}"
            if problem != self.problem:
                _log.exception(problem)
            self.problem = problem
        return more

    def run_once(self) -> bool:
        """Take in one batch; returns whether there was one, or there is a problem."""
        try:
            if not self._batch:
                self._read()
            if not self.caught_up and self._reader.segment >= self._own:
                self._interrupt_inherited()
            found = bool(self._batch)
            self._take(self._batch)
        except (DatabaseError, OSError) as error:
            self.problem = f"nothing can be taken from the journal into the database: {error}"
            _log.warning(self.problem)
            return True
        self.problem = None
        oldest = min((call.segment for call in self._under_way.values()), default=self._reader.segment)
        self._reader.delete_before(min(oldest, self._reader.segment))
        return found

    def _read(self) -> None:
        losses = self._reader.losses
        self._batch = self._reader.read()
        if self._reader.losses > losses:
            for call in self._under_way.values():
                call.torn = True

    def _take(self, batch: list[Record]) -> None:
        """Take in ``batch``, the next records of `_batch`; what the database refuses for good is kept as a file.

        What is done leaves `_batch`, so that a lock or a full disk in the middle lets only the rest be tried again.
        """
        if not batch:
            return
        before = {name: (call, len(call.pieces), call.capture) for name, call in self._under_way.items()}
        try:
            with self._db.transaction():
                self._open_sessions.begin()
                for record in batch:
                    # Most records of a stream are pieces.
                    if record.kind is not Kind.PIECE:
                        self._apply(record)
                    elif (call := self._under_way.get(record.id)) is not None:
                        call.pieces.append(record.payload)
                self._set_position(batch[-1].end)
        except Exception as error:
            self._restore(before)
            if is_of_the_database(error):
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                for half in (batch[:middle], batch[middle:]):
                    self._take(half)
                return
            self._refuse(batch[0], error)
        if self._taken < batch[-1].end:
            self._taken = batch[-1].end
        del self._batch[: len(batch)]

    def _set_position(self, end: Position) -> None:
        # After a restart the first records lie before the position, which never goes back.
        if self._taken < end:
            self._db.execute("UPDATE journal_position SET segment = ?, offset = ?", (end.segment, end.offset))

    def _restore(self, before: dict[str, tuple[_UnderWay, int, bytes | None]]) -> None:
        self._under_way = {}
        for name, (call, pieces, capture) in before.items():
            # What a failed batch added is added again when it is tried again.
            del call.pieces[pieces:]
            call.capture = capture
            self._under_way[name] = call
        self._forget()

    def _forget(self) -> None:
        """After a rollback."""
        self._calls.forget()
        self._open_sessions.forget()

    def _refuse(self, record: Record, error: Exception) -> None:
        call = self._under_way.get(record.id)
        # The end of a call stands for the whole of it.
        parts = _parts(call) if call is not None and record.kind is Kind.END else {}
        _log.error("the database refused a record of %s: %r", record.id, error)
        self._keep_refused(record.id, {record.kind.name.lower(): record.payload} | parts)
        with self._db.transaction():
            self._set_position(record.end)
        self._under_way.pop(record.id, None)
        if record.kind is Kind.START:
            # What comes of the call is kept beside its start, when its end comes.
            self._under_way[record.id] = _UnderWay(None, b"", record.segment, SessionKey(0))
        self.refused += 1

    def _keep_refused(self, name: str, parts: dict[str, bytes]) -> None:
        folder = self._journal_folder / "refused"
        folder.mkdir(exist_ok=True)
        for part, data in parts.items():
            (folder / f"{name}.{part}").write_bytes(data)
        _log.error("what it refused of %s is kept in %s", name, folder)

    def _apply(self, record: Record) -> None:
        new = self._taken < record.end
        if record.kind is Kind.START:
            self._start(record, new)
        elif record.kind is Kind.CAPTURE:
            if (call := self._under_way.get(record.id)) is not None:
                call.capture = record.payload
        elif record.kind is Kind.END:
            call = self._under_way.pop(record.id, None)
            if call is not None and call.start is None:
                self._keep_refused(record.id, {"end": record.payload} | _parts(call))
            elif call is not None and call.start is not None and new:
                self._end(call, call.start, unpack_end(record.payload))
        elif record.kind is Kind.REWARD and new:
            rewards.insert(self._db, unpack_reward(record.payload))
        elif record.kind is Kind.CLOSE and new:
            close = unpack_close(record.payload)
            self._open_sessions.closed(close.identity)
            closed = sessions.close(self._db, close.identity, close.by, close.at)
            if closed is not None:
                self._calls.forget_session(closed)

    def _start(self, record: Record, new: bool) -> None:
        start, request = unpack_start(record.payload)
        if new:
            key, is_new = self._open_sessions.for_call(start)
            if is_new:
                self._calls.begin_session(key)
        else:
            # Taken in before the restart; an open session of this identity can only be that one.
            newest = sessions.newest(self._db, start.identity)
            if newest is None:
                return
            key = newest.key
        self._under_way[record.id] = _UnderWay(start, request, record.segment, key)
        if start.supersedes is not None:
            self._supersede(start.supersedes)

    def _supersede(self, call: CallId) -> None:
        """A call was made again: what came of it first had no effect."""
        under_way = self._under_way.get(call)
        if under_way is not None:
            under_way.superseded = True
        calls.supersede(self._db, call)

    def _end(self, call: _UnderWay, start: CallStart, end: CallEnd) -> None:
        if call.torn and end.outcome is CallOutcome.COMPLETE:
            end = replace(end, outcome=CallOutcome.TRUNCATED, error="a part of its records in the journal was lost")
        recorded = RecordedCall(call.session, start, end, call.request, b"".join(call.pieces), call.capture)
        self._calls.write(recorded)
        if call.superseded:
            calls.supersede(self._db, start.id)
        sessions.count_call(self._db, call.session, start, end)
        if start.session_by is TaggedBy.NONE:  # it was the whole of it
            self._open_sessions.closed(start.identity)
            self._calls.forget_session(call.session)


def _parts(call: _UnderWay) -> dict[str, bytes]:
    """What there is of a call, by what it is."""
    parts = {"request": call.request, "response": b"".join(call.pieces)}
    return parts if call.capture is None else parts | {"capture": call.capture}


def _interrupted(start: CallStart) -> CallEnd:
    reason = "the proxy stopped during this call"
    return CallEnd(CallOutcome.INTERRUPTED, None, reason, None, start.started_at)
