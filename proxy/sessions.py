"""The sessions that are open now: which version each is pinned to, and how many of its calls are under way."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from proxy.recorder import Recorder
from storage import calls, sessions
from storage.database import Database, DatabaseError
from storage.records import Close
from storage.states import ClosedBy
from storage.types import DEFAULT_OWNER, Identity, Owner, VersionNumber

_log = logging.getLogger("slipstream.sessions")

_ENDED = 10_000
"""How many ended sessions are remembered: the newest."""


@dataclass(slots=True)
class OpenSession:
    identity: Identity
    version: VersionNumber
    last_call_at: float
    under_way: int = 0
    ends: ClosedBy | None = None
    """It closes for this reason as soon as no call of it is under way."""
    evaluates: bool = False
    """A call of it was for evaluation: all of them are."""


class SessionTable:
    """Open sessions, the longest idle first. ``live`` gives the version for new ones."""

    def __init__(self, db: Database, recorder: Recorder, live: Callable[[], VersionNumber]) -> None:
        self._db = db
        self._recorder = recorder
        self._live = live
        self._open: OrderedDict[Identity, OpenSession] = OrderedDict()
        self._ended: OrderedDict[Identity, None] = OrderedDict()
        """Closed for good, and not opened again. The database knows it a little later than this table."""
        self.take_over()

    def take_over(self) -> None:
        """The sessions that an earlier process left open; those that are known here stay as they are."""
        for session in sorted(sessions.opened(self._db), key=lambda s: s.last_call_at):
            identity = Identity(session.owner, session.session_id)
            if identity not in self._ended:
                opened = OpenSession(identity, session.version, session.last_call_at, evaluates=session.split == "eval")
                self._open.setdefault(identity, opened)

    def version(self, identity: Identity) -> VersionNumber:
        """The version that answers a call of this session: the one it is pinned to, or for a new one the live one."""
        session = self._open.get(identity)
        if session is not None:
            return session.version
        if identity in self._ended:
            return self._live()
        try:
            known = sessions.newest(self._db, identity)
            if known is not None and sessions.takes_calls(self._db, known):
                return known.version
        except DatabaseError as error:
            # Promise 3: whatever is wrong with the database, the agent gets its answer.
            _log.error("%s gets the live version, for the database cannot be read: %r", identity, error)
        return self._live()

    def evaluates(self, identity: Identity) -> bool:
        """Whether the open session of this identity is for evaluation."""
        session = self._open.get(identity)
        return session is not None and session.evaluates

    def begin(self, identity: Identity, version: VersionNumber, now: float, split: str) -> OpenSession:
        """A call of the session starts; a session that is not open is opened, pinned to ``version``."""
        session = self._open.setdefault(identity, OpenSession(identity, version, now))
        self._ended.pop(identity, None)
        session.under_way += 1
        session.evaluates = session.evaluates or split == "eval"
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
            known = self.knows(identity, None, in_doubt=True)
            if known and self._recorder.close(Close(identity, by, now)):
                self._remember_ended(identity, by)
            return known
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
            self._remember_ended(session.identity, session.ends)
        else:
            session.ends = None

    def knows(self, identity: Identity, episode: int | None, *, in_doubt: bool = False) -> bool:
        """Whether there is such a session (``episode`` None: any episode of it); ``in_doubt`` where nobody can tell."""
        if episode is None and (identity in self._open or identity in self._ended):
            return True  # maybe before the database knows it
        try:
            return sessions.find(self._db, identity, episode) is not None
        except DatabaseError as error:
            _log.error("whether there is %s is not known, for the database cannot be read: %r", identity, error)
            return in_doubt

    def may_read(self, owner: Owner, response_id: str) -> bool:
        """Whether a stored response is not another owner's. One that is not known is vLLM's to judge."""
        try:
            issuer = calls.issuer(self._db, response_id)
        except DatabaseError as error:
            _log.error("whose response %s is cannot be read: %r", response_id, error)
            return owner == DEFAULT_OWNER
        return issuer is None or issuer == owner

    def has_ended(self, identity: Identity) -> bool:
        """Whether the session was ended, not long ago: a further call of its id begins the next episode."""
        return identity in self._ended

    def _remember_ended(self, identity: Identity, by: ClosedBy) -> None:
        if by is ClosedBy.IDLE:
            return  # it opens again
        self._ended[identity] = None
        if len(self._ended) > _ENDED:
            self._ended.popitem(last=False)

    def pinned(self) -> set[VersionNumber]:
        """The versions that open sessions name."""
        return {session.version for session in self._open.values()}
