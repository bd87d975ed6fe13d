"""Forming groups: which closed sessions are compared with each other, and which can never be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from storage.types import Session
from trainer.settings import GroupSettings

MOST_SECONDS_APART = 24 * 3600.0
"""Between the ends of two members: what an agent's world is like changes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A closed session that can teach something."""

    session: Session
    behind: int
    """How many updates lie between what sampled it and the newest version."""

    @property
    def closed_at(self) -> float:
        assert self.session.closed_at is not None, "a session that waits is closed"
        return self.session.closed_at


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds in every group."""

    settings: GroupSettings
    max_staleness: int
    """How many updates two members may lie apart."""

    def choose(
        self, waiting: Iterable[Candidate], now: float, *, asked: Collection[str | None] = ()
    ) -> list[list[Session]]:
        """The groups to form of ``waiting`` (oldest first), one after another over the scenarios.

        A group has ``settings.size`` members; or ``settings.min_size`` and more when its oldest session has waited
        ``settings.max_wait``, or when a run of its scenario was ``asked`` for (None in it: a run of all scenarios).
        What fits into no group holds up no other.
        """
        queues: defaultdict[tuple[str, str | None, str], list[Candidate]] = defaultdict(list)
        for one in waiting:
            queues[one.session.owner, one.session.scenario, one.session.split].append(one)
        rounds = [
            self._of_one_kind(queue, now, asked=None in asked or scenario in asked)
            for (_, scenario, _), queue in queues.items()
        ]
        return [[one.session for one in group] for turn in _round_robin(rounds) for group in turn]

    def is_lonely(self, session: Session, now: float) -> bool:
        """Whether too much time has passed for anyone to join a session that is in no group yet."""
        return now - (session.closed_at or now) > max(MOST_SECONDS_APART, self.settings.max_wait)

    def _of_one_kind(self, queue: list[Candidate], now: float, *, asked: bool) -> list[list[Candidate]]:
        groups = []
        at = 0
        while at < len(queue):
            oldest = queue[at]
            members = self._around(oldest, queue[at:])
            due = asked or now - oldest.closed_at >= self.settings.max_wait
            if len(members) == self.settings.size or (due and len(members) >= self.settings.min_size):
                groups.append(members)
                taken = {one.session.key for one in members}
                queue = [one for one in queue[at:] if one.session.key not in taken]
                at = 0
            else:
                at += 1
        return groups

    def _around(self, oldest: Candidate, queue: Sequence[Candidate]) -> list[Candidate]:
        """The oldest of ``queue`` and those behind it that it can be compared with, up to a whole group."""
        members: list[Candidate] = []
        nearest = farthest = oldest.behind
        for one in queue:
            if len(members) == self.settings.size or one.closed_at - oldest.closed_at > MOST_SECONDS_APART:
                break
            low, high = min(nearest, one.behind), max(farthest, one.behind)
            if high - low <= self.max_staleness:
                members.append(one)
                nearest, farthest = low, high
        return members


def _round_robin(rounds: Iterable[list[list[Candidate]]]) -> list[list[list[Candidate]]]:
    """First every kind's first group, then every one's second."""
    rows = [list(groups) for groups in rounds]
    turns: list[list[list[Candidate]]] = []
    while any(rows):
        turns.append([row.pop(0) for row in rows if row])
    return turns
