"""The recorder: what an agent's call leaves in the journal while it passes. It never stops the call."""

from __future__ import annotations

import asyncio
import logging
import time

from storage.errors import JournalDown
from storage.journal import JournalWriter, Kind
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
        self.lost = 0
        """Calls that could not be recorded whole."""
        self._owed: dict[str, bytes] = {}
        """The end records of calls that broke off in the journal, by the calls' ids."""

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
        recording = Recording(self, start)
        recording.append(Kind.START, pack_start(start), request)
        return recording

    def close(self, close: Close) -> bool:
        return self.append(Kind.CLOSE, new_id(), pack_close(close))

    def reward(self, reward: Reward) -> bool:
        return self.append(Kind.REWARD, reward.id, pack_reward(reward))

    async def try_again(self) -> None:
        """While recording is down: look whether it works again, with a piece of no call, which is passed over."""
        if self.problem is not None:
            self.append(Kind.PIECE, new_id())
            await self.settle()

    def append(self, kind: Kind, record_id: str, *payload: bytes) -> bool:
        """Whether the record is in the journal."""
        try:
            self._pay()
            self._journal.append(kind, record_id, *payload)
        except JournalDown as down:
            if self._down is None:
                _log.error("recording is down: %s", down)
            self._down = str(down)
            return False
        if self._down is not None:
            _log.warning("recording works again")
            self._down = None
        return True

    def owe(self, call: str, end: bytes) -> None:
        """The end of a call could not be recorded; until it is, the journal keeps everything from its start on."""
        self.lost += 1
        self._owed[call] = end

    def _pay(self) -> None:
        for call, end in list(self._owed.items()):
            self._journal.append(Kind.END, call, end)
            self._owed.pop(call, None)


class Recording:
    """One call on its way into the journal. After a record that was lost, the rest of the call is not kept."""

    def __init__(self, recorder: Recorder, start: CallStart) -> None:
        self._recorder = recorder
        self.start = start
        self.works = True

    def append(self, kind: Kind, *payload: bytes) -> None:
        if self.works and not self._recorder.append(kind, self.start.id, *payload):
            self.works = False
            if kind is Kind.START:
                self._recorder.lost += 1  # there is nothing of it to end
            else:
                self._recorder.owe(self.start.id, payload[0] if kind is Kind.END else pack_end(_broken_off()))

    def piece(self, data: bytes) -> None:
        if data:
            self.append(Kind.PIECE, data)

    def capture(self, payload: bytes) -> None:
        self.append(Kind.CAPTURE, payload)

    def end(self, end: CallEnd) -> None:
        """The call's end; its last byte may leave after `settle`."""
        self.append(Kind.END, pack_end(end))

    async def settle(self) -> None:
        await self._recorder.settle()


def _broken_off() -> CallEnd:
    reason = "recording was down during this call"
    return CallEnd(CallOutcome.TRUNCATED, None, reason, None, time.time())
