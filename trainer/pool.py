"""The sessions that wait, known from turn to turn: a turn looks at what is new, and at what time or a version changed.

Memory holds nothing that is not in the database: a pool that is new, or that failed in the middle, looks at all.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache, partial

from storage import groups, runs, sessions
from storage.database import Database
from storage.types import GroupId, Session, SessionKey, VersionNumber, new_id
from trainer.groups import Candidate, Kind, Rules, kind
from trainer.settings import TrainerSettings
from trainer.sieve import Sieve

Behind = Callable[[VersionNumber], int]
"""How many updates lie between a version and the newest."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A session that waits, as it was when it was looked at."""

    session: Session
    versions: frozenset[VersionNumber]

    def behind(self, behind: Behind) -> int:
        return max(map(behind, self.versions))


class Pool:
    def __init__(self, db: Database, settings: TrainerSettings) -> None:
        self._db = db
        self._settings = settings
        self._sieve = Sieve(db, settings)
        self._rules = Rules(settings.group, settings.max_staleness)
        self._forget()

    def _forget(self) -> None:
        self._seen = -1
        """The last change that was looked at."""
        self._known: dict[SessionKey, _Known] = {}
        """Some may have been opened again or deleted since: before anything becomes of them the database is asked."""
        self._usable: dict[Kind, set[SessionKey]] = {}
        """Those that can be grouped now; the others wait for a reward."""
        self._sampled: defaultdict[frozenset[VersionNumber], set[SessionKey]] = defaultdict(set)
        self._ends: list[tuple[float, SessionKey]] = []
        """A heap: when a session has waited long enough, for a reward or for others."""
        self._ripens: list[tuple[float, Kind]] = []
        """A heap: when fewer than a whole group are enough."""
        self._ripe_at: float | None = None
        self._touched: set[Kind] = set()
        """Where a group may have become possible."""

    def is_due(self, db: Database) -> bool:
        """Whether a group can be formed, as far as can be told without a look at calls.

        From any thread; ``db`` is the connection of the one that asks.
        """
        if self._ripe_at is not None and self._ripe_at <= time.time():
            return True
        new = sessions.waiting(db, self._seen)
        many = Counter(kind(one) for one in new if one.key not in self._usable.get(kind(one), ()))
        return any(n + len(self._usable.get(of, ())) >= self._settings.group.size for of, n in many.items())

    def form(self, now: float, *, asked: Collection[str | None] = ()) -> None:
        """Form groups, and end the sessions that can be in none; ``asked`` as for `Rules.choose`."""
        try:
            behind = cache(partial(runs.steps_behind, self._db))
            self._take_in(now, behind)
            touched = self._touched | self._asked_for(asked)
            self._touched = set()
            self._choose(self._candidates(touched, behind), now, asked)
            self._wait(touched, now)
        except BaseException:
            self._forget()
            raise

    def _take_in(self, now: float, behind: Behind) -> None:
        """Look at what is new, and again at what has waited long enough or has become stale."""
        last = sessions.last_change(self._db)
        new = sessions.waiting(self._db, self._seen)
        self._seen = last
        again = {
            key
            for versions, keys in self._sampled.items()
            if max(map(behind, versions)) > self._settings.max_staleness
            for key in keys
        }
        while self._ends and self._ends[0][0] <= now:
            again.add(heapq.heappop(self._ends)[1])
        again.difference_update(one.key for one in new)
        old = sessions.still_waiting(self._db, self._known.keys() & again)
        self._drop(again)
        self._drop(one.key for one in new)
        for session in (*old, *new):
            self._look(_Known(session, sessions.sampled_by(self._db, session.key)), behind, now)
        while self._ripens and self._ripens[0][0] <= now:
            self._touched.add(heapq.heappop(self._ripens)[1])

    def _look(self, known: _Known, behind: Behind, now: float) -> None:
        session = known.session
        found = self._sieve.candidate(session, known.behind(behind), now)
        if found is None:
            return
        self._known[session.key] = known
        self._sampled[known.versions].add(session.key)
        patience = self._settings.reward.wait if found.lacks_reward else self._rules.patience
        heapq.heappush(self._ends, (found.closed_at + patience, session.key))
        if not found.lacks_reward:
            self._usable.setdefault(kind(session), set()).add(session.key)
            self._touched.add(kind(session))

    def _drop(self, keys: Iterable[SessionKey]) -> None:
        for key in keys:
            known = self._known.pop(key, None)
            if known is None:
                continue
            of = kind(known.session)
            usable, sampled = self._usable.get(of, set()), self._sampled[known.versions]
            usable.discard(key)
            sampled.discard(key)
            if not usable:
                self._usable.pop(of, None)
            if not sampled:
                del self._sampled[known.versions]

    def _asked_for(self, asked: Collection[str | None]) -> set[Kind]:
        """The kinds of which a run was asked for and that have enough for a small group."""
        if not asked:
            return set()
        return {
            of
            for of, keys in self._usable.items()
            if len(keys) >= self._rules.least and (None in asked or of[1] in asked)
        }

    def _candidates(self, kinds: Collection[Kind], behind: Behind) -> list[Candidate]:
        """Those of the kinds that are still as they were when they were looked at, oldest first."""
        keys = {key for of in kinds for key in self._usable.get(of, ())}
        found = []
        for session in sessions.still_waiting(self._db, keys):
            known = self._known[session.key]
            if known.session.closed_at == session.closed_at:
                found.append(Candidate(session, known.behind(behind)))
        # The others were opened again, or deleted; what closes again is new.
        gone = keys - {one.session.key for one in found}
        self._sieve.forget(gone)
        self._drop(gone)
        return found

    def _choose(self, candidates: list[Candidate], now: float, asked: Collection[str | None]) -> None:
        chosen: set[SessionKey] = set()
        for members in self._rules.choose(candidates, now, asked=asked):
            keys = {member.key for member in members}
            chosen |= keys
            if groups.claim(self._db, GroupId(new_id()), members, now):
                self._sieve.forget(keys)
                self._drop(keys)
            else:
                # A session that a call has just opened again is left for the next turn, with its neighbours.
                self._touched.add(kind(members[0]))
        for one in candidates:
            if one.session.key not in chosen and self._rules.is_lonely(one.session, now):
                self._sieve.end_lonely(one.session, now)
                self._drop([one.session.key])

    def _wait(self, kinds: Iterable[Kind], now: float) -> None:
        """Note when those that are left are enough for a small group."""
        longest = self._settings.group.max_wait
        for of in kinds:
            closed = [self._known[key].session.closed_at or now for key in self._usable.get(of, ())]
            later = [at + longest for at in closed if now - at <= longest]
            if later and len(closed) >= self._rules.least:
                heapq.heappush(self._ripens, (min(later), of))
        self._ripe_at = self._ripens[0][0] if self._ripens else None
