"""Which closed sessions can be compared with others; each that never can be ends here, with its reason."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from storage import calls, rewards, sessions
from storage.database import Database
from storage.states import CallOutcome, Outcome
from storage.text import counted
from storage.types import Call, Session, SessionKey
from trainer import sequences
from trainer.drift import Drifts
from trainer.errors import BatchInvalid
from trainer.groups import MOST_SECONDS_APART, Candidate
from trainer.settings import TrainerSettings

_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at a session's calls showed."""

    closed_at: float | None
    """When it was last closed; it may have been opened again since."""
    nothing: str | None
    """Why it can teach nothing."""
    crash: str | None


class Sieve:
    """Looks at each session's calls once, however long it waits, and again where it was opened meanwhile."""

    def __init__(self, db: Database, settings: TrainerSettings) -> None:
        self._db = db
        self._settings = settings
        self._drifts = Drifts(db, settings)
        self._looks: dict[SessionKey, _Look] = {}

    def candidate(self, session: Session) -> Candidate | None:
        """The session as one that can be grouped; None where it cannot be: not yet, or never, and then it has ended."""
        behind = sessions.steps_behind(self._db, session.key)
        if behind > self._settings.max_staleness:
            self._end(session, f"stale: sampled {counted(behind, 'version')} before the newest")
            return None
        look = self._looks.get(session.key)
        if look is None or look.closed_at != session.closed_at:
            look = self._looks[session.key] = self._look(session)
        if look.nothing:
            self._end(session, look.nothing)
            return None
        # What the world broke off says nothing of the agent, unless somebody says so.
        if look.crash and not rewards.of_session(self._db, session.key):
            if time.time() - (session.closed_at or 0.0) >= self._settings.reward.wait:
                self._end(session, look.crash)
            return None
        return Candidate(session, behind)

    def end_lonely(self, session: Session) -> None:
        """Nobody came in time with whom the session could be compared."""
        hours = max(MOST_SECONDS_APART, self._settings.group.max_wait) / 3600
        least = counted(self._settings.group.min_size - 1, "other session")
        self._end(session, f"alone: within {hours:g} hours there were not {least} to compare it with")

    def forget(self, keys: Iterable[SessionKey]) -> None:
        for key in keys:
            self._looks.pop(key, None)

    def _end(self, session: Session, reason: str) -> None:
        with self._db.transaction():
            sessions.set_outcome(self._db, session.key, Outcome.SKIPPED, reason, None, time.time())
        self.forget([session.key])

    def _look(self, session: Session) -> _Look:
        of_session = calls.of_session(self._db, session.key)
        self._drifts.record(session.key, of_session)
        try:
            found = sequences.trajectory(of_session, self._settings.train.agents)
        except BatchInvalid as error:
            return _Look(session.closed_at, f"its tokens cannot be trained: {error}", None)
        can_be_judged = session.split == "eval" and sequences.last_call(of_session) is not None
        nothing = None if found.sequences or can_be_judged else found.nothing
        return _Look(session.closed_at, nothing, crash(of_session))


def crash(of_session: Iterable[Call]) -> str | None:
    """How the agent's world broke a session off, in words; None where the agent came to its own end.

    It did where its last call has no whole answer: vLLM failed or was not there, the stream broke, the proxy stopped,
    the client left. A request that vLLM refused (too long a conversation) is the agent's own doing.
    """
    last = max(of_session, key=lambda call: (call.started_at, call.seq), default=None)
    if last is None or last.outcome in (CallOutcome.COMPLETE, CallOutcome.SUPERSEDED):
        return None
    refused = last.status is not None and 400 <= last.status < 500 and last.status != _TOO_MANY_REQUESTS
    if last.outcome is CallOutcome.UPSTREAM_ERROR and refused:
        return None
    return f"crashed: its last call ended as {last.outcome}, and nobody gave it a reward"
