"""The recorder: what an agent's call leaves in the journal while it passes. It never stops the call."""

from __future__ import annotations

import logging

from storage.errors import JournalDown
from storage.journal import JournalWriter, Kind
from storage.records import Close, pack_close, pack_end, pack_reward, pack_start
from storage.types import CallEnd, CallStart, Reward, new_id

_log = logging.getLogger("slipstream.recorder")


class Recorder:
    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self.problem: str | None = None
        """Why nothing is recorded at the moment, in words; None while recording works."""
        self.lost = 0
        """Calls that could not be recorded whole."""

    def start(self, start: CallStart, request: bytes) -> Recording:
        recording = Recording(self, start)
        recording.append(Kind.START, pack_start(start), request)
        return recording

    def close(self, close: Close) -> bool:
        return self.append(Kind.CLOSE, new_id(), pack_close(close))

    def reward(self, reward: Reward) -> bool:
        return self.append(Kind.REWARD, reward.id, pack_reward(reward))

    def append(self, kind: Kind, record_id: str, *payload: bytes) -> bool:
        """Whether the record is in the journal."""
        try:
            self._journal.append(kind, record_id, *payload)
        except JournalDown as down:
            if self.problem is None:
                _log.error("recording is down: %s", down)
            self.problem = str(down)
            return False
        if self.problem is not None:
            _log.warning("recording works again")
            self.problem = None
        return True


class Recording:
    """One call on its way into the journal. After a record that was lost, the rest of the call is not kept."""

    def __init__(self, recorder: Recorder, start: CallStart) -> None:
        self._recorder = recorder
        self.start = start
        self.works = True

    def append(self, kind: Kind, *payload: bytes) -> None:
        if self.works and not self._recorder.append(kind, self.start.id, *payload):
            self.works = False
            self._recorder.lost += 1

    def piece(self, data: bytes) -> None:
        if data:
            self.append(Kind.PIECE, data)

    def capture(self, payload: bytes) -> None:
        self.append(Kind.CAPTURE, payload)

    def end(self, end: CallEnd) -> None:
        self.append(Kind.END, pack_end(end))
