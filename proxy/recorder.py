"""The recorder: what an agent's call leaves in the journal while it passes. It never stops the call."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from storage.errors import JournalDown
from storage.journal import Entry, JournalWriter, Kind
from storage.records import Close, pack_close, pack_end, pack_reward, pack_start
from storage.states import CallOutcome
from storage.types import CallEnd, CallStart, Reward, new_id

_log = logging.getLogger("slipstream.recorder")


class Recorder:
    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self._down: str | None = None
        self._unsynced: str | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        """The sync that begins after `_syncing`: it is for all who ask meanwhile."""
        self._paying = threading.Lock()
        self.lost = 0
        """Calls that could not be recorded whole."""
        self._owed: list[tuple[Entry, ...]] = []
        """The ends of calls that broke off in the journal."""

    @property
    def problem(self) -> str | None:
        """Why nothing is recorded at the moment, in words; None while recording works."""
        return self._down or self._unsynced

    async def settle(self) -> None:
        """Return when all that was recorded until now is as safe as the settings ask: before anyone is told so.

        Without ``fsync`` that is now. With it, one sync of the disk is for all calls that wait for it, in a thread.
        A disk that fails stops no call: `problem` says so.
        """
        if not self._journal.durable:
            return
        if self._next is None:
            self._next = asyncio.create_task(self._sync_after(self._syncing))
        # A client that leaves cancels its own waiting, not that of the others.
        await asyncio.shield(self._next)

    async def _sync_after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait({running})
        self._syncing, self._next = self._next, None
        try:
            await asyncio.to_thread(self._journal.sync)
        except JournalDown as down:
            if self._unsynced is None:
                _log.error("recording would not survive a loss of power: %s", down)
            self._unsynced = str(down)
        else:
            self._unsynced = None

    def start(self, start: CallStart, request: bytes) -> Recording:
        return Recording(self, start, request)

    def close(self, close: Close) -> bool:
        return self.append((Kind.CLOSE, new_id(), pack_close(close)))

    def reward(self, reward: Reward) -> bool:
        return self.append((Kind.REWARD, reward.id, pack_reward(reward)))

    async def try_again(self) -> None:
        """While recording is down: look whether it works again, with a piece of no call, which is passed over."""
        if self.problem is not None:
            self.append((Kind.PIECE, new_id()))
            await self.settle()

    def append(self, *entries: Entry) -> bool:
        """Whether the records are in the journal, all of them."""
        try:
            if self._owed:
                self._pay()
            self._journal.append(*entries)
        except JournalDown as down:
            if self._down is None:
                _log.error("recording is down: %s", down)
            self._down = str(down)
            return False
        if self._down is not None:
            _log.warning("recording works again")
            self._down = None
        return True

    def owe(self, *entries: Entry) -> None:
        """A call could not be recorded whole; until its end is, the journal keeps everything from its start on."""
        self.lost += 1
        self._owed.append(entries)

    def _pay(self) -> None:
        with self._paying:  # the admin API's threads record, too
            while self._owed:
                self._journal.append(*self._owed[0])
                del self._owed[0]


class Recording:
    """One call on its way into the journal: its start and its pieces at once, its last bytes and tokens with its end.

    After a record that was lost, the rest of the call is not kept.
    """

    __slots__ = ("_recorder", "_waiting", "id", "works")

    def __init__(self, recorder: Recorder, start: CallStart, request: bytes) -> None:
        self._recorder = recorder
        self.id = start.id
        self._waiting: list[Entry] = []
        self.works = recorder.append((Kind.START, start.id, pack_start(start), request))
        if not self.works:
            recorder.lost += 1  # there is nothing of it to end

    def piece(self, data: bytes) -> None:
        """A piece of the response that leaves now."""
        if data and self.works:
            entries, self._waiting = [*self._waiting, (Kind.PIECE, self.id, data)], []
            if not self._recorder.append(*entries):
                self.works = False
                self._recorder.owe((Kind.END, self.id, pack_end(_broken_off())))

    def keep(self, data: bytes) -> None:
        """A piece that leaves when the call's end is recorded."""
        self._waiting.append((Kind.PIECE, self.id, data))

    def capture(self, payload: bytes) -> None:
        self._waiting.append((Kind.CAPTURE, self.id, payload))

    def end(self, end: CallEnd) -> None:
        """The call's end; its last byte may leave after `settle`."""
        if self.works:
            entries = (*self._waiting, (Kind.END, self.id, pack_end(end)))
            if not self._recorder.append(*entries):
                self.works = False
                self._recorder.owe(*entries)

    async def settle(self) -> None:
        await self._recorder.settle()


def _broken_off() -> CallEnd:
    reason = "recording was down during this call"
    return CallEnd(CallOutcome.TRUNCATED, None, reason, None, time.time())
