"""Replay: groups that hold the best of their scenario are trained again while new ones do not reach it.

What is rare and good is met once and forgotten by the plain updates that follow; on record it is kept. Rewards that
clients gave are compared over all groups of a scenario. Scores of a judge, and sums of weighted rewards, mean
something within their group alone: there a member holds the best that won against the reference, which is the oldest
version of its group, and groups are trained again only as long as new ones would be trained (``max_staleness``).
The loss guards what is trained again (``trainer.loss.replay``), however far from the policy it lies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence

from storage.groups import CLIENTS
from storage.replays import Past
from storage.types import GroupId, VersionNumber
from trainer.advantages import SMALLEST_SPREAD

ENOUGH = 0.25
"""The share of new sessions with the best reward from which on nothing is trained again."""
KEPT = 16
"""Of the groups that hold the best, the newest that are trained again."""
PER_REPLAYED = 3
"""New groups for each that is trained again."""


def choose(
    past: Sequence[Past], new: Collection[GroupId], behind: Callable[[VersionNumber], int], max_staleness: int
) -> list[GroupId]:
    """The groups to train again with the ``new`` ones of a scenario, those first that were so the least often.

    ``past``: its groups, newest first, the new ones among them. ``behind``: how many updates a version lies behind.
    """
    absolute = [group for group in past if group.judge == CLIENTS]
    relative = [group for group in past if group.judge != CLIENTS]
    best = max((reward for group in absolute for _, reward in group.members), default=0.0)
    near = [one for one in relative if max(behind(version) for version, _ in one.members) <= max_staleness]
    return [
        *_of_one_kind(absolute, new, lambda group: [reward > best - SMALLEST_SPREAD for _, reward in group.members]),
        *_of_one_kind(near, new, _won),
    ]


def _of_one_kind(past: Sequence[Past], new: Collection[GroupId], best: Callable[[Past], list[bool]]) -> list[GroupId]:
    """``best``: of each member whether it holds the best; nothing where a group cannot tell."""
    fresh = [group for group in past if group.id in new]
    reached = [one for group in fresh for one in best(group)]
    if not reached or statistics.fmean(reached) >= ENOUGH:
        return []
    kept = [group for group in past if group.trained and any(best(group))][:KEPT]
    return [group.id for group in sorted(kept, key=lambda one: one.times)[: math.ceil(len(fresh) / PER_REPLAYED)]]


def _won(group: Past) -> list[bool]:
    """Which members won against the oldest version's."""
    oldest = min(version for version, _ in group.members)
    reference = [reward for version, reward in group.members if version == oldest]
    if len(reference) == len(group.members):
        return []
    least = statistics.fmean(reference) + SMALLEST_SPREAD
    return [version > oldest and reward > least for version, reward in group.members]
