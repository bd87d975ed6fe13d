"""Forming groups: which closed sessions are compared with each other, and which can never be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from storage.types import Session
from trainer.settings import GroupSettings


def choose(
    waiting: Sequence[Session], settings: GroupSettings, now: float, *, asked: Collection[str | None] = ()
) -> list[list[Session]]:
    """The groups to form of the closed sessions ``waiting`` (oldest first), one after another over the scenarios.

    A group has ``settings.size`` members; or ``settings.min_size`` and more when its oldest session has waited
    ``settings.max_wait``, or when a run of its scenario was ``asked`` for (None in it: a run of all scenarios).
    """
    queues: defaultdict[tuple[str, str | None, str], list[Session]] = defaultdict(list)
    for session in waiting:
        queues[(session.owner, session.scenario, session.split)].append(session)
    rounds = [
        _of_one_scenario(queue, settings, now, asked=None in asked or scenario in asked)
        for (_, scenario, _), queue in queues.items()
    ]
    return [group for turn in _round_robin(rounds) for group in turn]


def _of_one_scenario(queue: list[Session], settings: GroupSettings, now: float, *, asked: bool) -> list[list[Session]]:
    groups = [queue[i : i + settings.size] for i in range(0, len(queue), settings.size)]
    last = groups[-1]
    due = asked or now - (last[0].closed_at or now) >= settings.max_wait
    if len(last) < settings.size and not (due and len(last) >= settings.min_size):
        groups.pop()
    return groups


def _round_robin(rounds: Iterable[list[list[Session]]]) -> list[list[list[Session]]]:
    """First every scenario's first group, then every one's second."""
    rows = [list(groups) for groups in rounds]
    turns: list[list[list[Session]]] = []
    while any(rows):
        turns.append([row.pop(0) for row in rows if row])
    return turns
