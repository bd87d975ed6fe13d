"""The clients' own rewards as the one source of a group's: where every member has them, no judge is asked."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from storage import rewards
from storage.database import Database
from storage.types import SessionKey

REWARD = "reward"
"""The name that a reward has where nobody gives it one."""

Named = Mapping[str, float]
"""A session's rewards by name."""


def of_members(db: Database, sessions: Sequence[SessionKey], weights: Named, least: float) -> list[float] | None:
    """One reward for each session, or None where one of them lacks one.

    Without ``weights`` it is the reward named `REWARD`; else `combined`.
    """
    given = [newest(db, session) for session in sessions]
    names = [name for name, weight in weights.items() if weight] or [REWARD]
    if not all(name in of_one for of_one in given for name in names):
        return None
    return combined(given, weights, least) if weights else [of_one[REWARD] for of_one in given]


def newest(db: Database, session: SessionKey) -> dict[str, float]:
    """By name the last one, whoever gave it: it supersedes the earlier ones."""
    return {reward.name: reward.value for reward in rewards.of_session(db, session)}


def combined(given: Sequence[Named], weights: Named, least: float) -> list[float]:
    """The weighted sum of each member's named rewards, each name first standardised within the group.

    To mean 0 and standard deviation 1 (of the group as a whole), so that the unit of a reward says nothing about its
    weight. A name whose best and worst lie closer together than ``least`` says nothing: noise is not blown up.
    """
    totals = [0.0] * len(given)
    for name, weight in weights.items():
        if not weight:
            continue
        values = [of_one[name] for of_one in given]
        if max(values) - min(values) < max(least, _SMALLEST):
            continue
        mean, deviation = statistics.fmean(values), statistics.pstdev(values)
        totals = [total + weight * (value - mean) / deviation for total, value in zip(totals, values, strict=True)]
    return totals


_SMALLEST = 1e-6
