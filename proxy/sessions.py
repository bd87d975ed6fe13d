"""The sessions that are open now: which version each is pinned to, and how many of its calls are under way."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from proxy.recorder import Recorder
from storage import sessions
from storage.database import Database, DatabaseError
from storage.records import Close
from storage.states import ClosedBy
from storage.types import Identity, VersionNumber

_log = logging.getLogger("slipstream.sessions")


@dataclass(slots=True)
class OpenSession:
    identity: Identity
    version: VersionNumber
    last_call_at: float
    under_way: int = 0
    ends: ClosedBy | None = None
    """It closes for this reason as soon as no call of it is under way."""


class SessionTable:
    """Open sessions, the longest idle first. ``live`` gives the version for new ones."""

    def __init__(self, db: Database, recorder: Recorder, live: Callable[[], VersionNumber]) -> None:
        self._db = db
        self._recorder = recorder
        self._live = live
        self._open: OrderedDict[Identity, OpenSession] = OrderedDict()
        for session in sorted(sessions.opened(db), key=lambda s: s.last_call_at):
            identity = Identity(session.owner, session.session_id)
            self._open[identity] = OpenSession(identity, session.version, session.last_call_at)

    def version(self, identity: Identity) -> VersionNumber:
        """The version that answers a call of this session: the one it is pinned to, or for a new one the live one."""
        session = self._open.get(identity)
        if session is not None:
            return session.version
        try:
            known = sessions.newest(self._db, identity)
            if known is not None and sessions.takes_calls(self._db, known):
                return known.version
        except DatabaseError as error:
            # Promise 3: whatever is wrong with the database, the agent gets its answer.
            _log.error("%s gets the live version, for the database cannot be read: %r", identity, error)
        return self._live()

    def begin(self, identity: Identity, version: VersionNumber, now: float) -> OpenSession:
        """A call of the session starts; a session that is not open is opened, pinned to ``version``."""
        session = self._open.setdefault(identity, OpenSession(identity, version, now))
        session.under_way += 1
        session.last_call_at = now
        self._open.move_to_end(identity)
        return session

    def finish(self, session: OpenSession, now: float, *, ends: bool) -> None:
        """A call of the session ended; with ``ends`` the agent said that it was the last one."""
        session.under_way -= 1
        session.last_call_at = now
        self._open.move_to_end(session.identity)
        if ends:
            session.ends = ClosedBy.ENDED
        self._close_if_due(session, now)

    def forget(self, session: OpenSession) -> None:
        """An untagged call was its whole session; its record closes it."""
        del self._open[session.identity]

    def end(self, identity: Identity, by: ClosedBy, now: float) -> bool:
        """Close a session once no call of it is under way; returns whether it was open, or is known at all."""
        session = self._open.get(identity)
        if session is None:
            known = sessions.newest(self._db, identity)
            if known is not None:
                self._recorder.close(Close(identity, by, now))
            return known is not None
        session.ends = by
        self._close_if_due(session, now)
        return True

    def close_idle(self, now: float, idle: float) -> None:
        """Close the sessions without a call for ``idle`` seconds."""
        for session in list(self._open.values()):
            if session.last_call_at + idle > now:
                break
            if not session.under_way:
                session.ends = ClosedBy.IDLE
                self._close_if_due(session, now)

    def _close_if_due(self, session: OpenSession, now: float) -> None:
        if session.ends is None or session.under_way:
            return
        # Unrecorded, it stays open: it is closed for being idle when recording works again.
        if self._recorder.close(Close(session.identity, session.ends, now)):
            del self._open[session.identity]
        else:
            session.ends = None

    def pinned(self) -> set[VersionNumber]:
        """The versions that open sessions name."""
        return {session.version for session in self._open.values()}
