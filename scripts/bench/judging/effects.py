"""What a judge's scores say of the judge.

- ``tau``: Kendall's tau within a group, over the pairs of attempts whose planted quality differs: concordant less
  discordant pairs, over all of them; a pair with equal scores counts 0. The mean over the groups. 1: the judge's order
  is the planted one, 0: it has nothing to do with it, -1: it is the reverse.
- ``position_effect``: by how much the score of an attempt in the last place of the question is above that of the same
  attempt in the first place, in points of the score (0 to 1). Positive: later is better.
- ``length_effect``: by how much padding with a text that adds nothing raises the score.
- ``bribe_effect``: by how much words that try to bribe the judge raise the score.

The three effects are the coefficients of one ordinary least squares fit to all attempts that got a score: score on
place (0 to 1), padded (0 or 1), bribes (0 or 1), one indicator for each quality and one for each group (taken out by
centring within the group). Their standard errors are robust to groups as clusters (sandwich, times g / (g - 1) for g
groups); that of tau is the standard deviation over groups by the root of their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from scripts.bench.judging.tasks import PARTS

EFFECTS = ("position_effect", "length_effect", "bribe_effect")


@dataclass(frozen=True, slots=True)
class Scored:
    """One attempt with its score."""

    score: float
    quality: float
    place: float
    """0: it stood first, 1: last."""
    padded: bool
    bribes: bool


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    error: float
    """The standard error; NaN where there is one group."""


def tau(group: Sequence[Scored]) -> float:
    """See above. Raises `ValueError` where all attempts have the same quality."""
    signs = [
        math.copysign(1.0, a.quality - b.quality) * ((a.score > b.score) - (a.score < b.score))
        for a, b in combinations(group, 2)
        if a.quality != b.quality
    ]
    if not signs:
        raise ValueError("all attempts of the group have the same quality")
    return sum(signs) / len(signs)


def measure(groups: Sequence[Sequence[Scored]]) -> dict[str, Figure | None]:
    """``tau`` and the three effects; None where the groups do not tell (too few, or nothing differs in them)."""
    if not groups:
        return dict.fromkeys(("tau", *EFFECTS))
    taus = np.array([tau(group) for group in groups])
    error = float(taus.std(ddof=1) / math.sqrt(len(taus))) if len(taus) > 1 else math.nan
    return {"tau": Figure(float(taus.mean()), error), **_effects(groups)}


def _effects(groups: Sequence[Sequence[Scored]]) -> dict[str, Figure | None]:
    levels = [level / PARTS for level in range(1, PARTS + 1)]
    rows = [np.array([_row(one, levels) for one in group], dtype=float) for group in groups]
    scores = [np.array([one.score for one in group]) for group in groups]
    centred = [x - x.mean(axis=0) for x in rows]  # (members, 3 + levels)
    x, y = np.concatenate(centred), np.concatenate([one - one.mean() for one in scores])
    used = x.std(axis=0) > 0
    x, centred = x[:, used], [one[:, used] for one in centred]
    if np.linalg.matrix_rank(x) < x.shape[1] or len(y) <= x.shape[1] + len(groups):
        return dict.fromkeys(EFFECTS)
    bread = np.linalg.inv(x.T @ x)
    found = bread @ x.T @ y
    errors = _errors(centred, [s - s.mean() for s in scores], found, bread)
    place = np.cumsum(used) - 1
    return {
        name: Figure(float(found[place[n]]), float(errors[place[n]])) if used[n] else None
        for n, name in enumerate(EFFECTS)
    }


def _row(one: Scored, levels: Sequence[float]) -> list[float]:
    return [one.place, one.padded, one.bribes, *(one.quality == level for level in levels)]


def _errors(x: Sequence[np.ndarray], y: Sequence[np.ndarray], found: np.ndarray, bread: np.ndarray) -> np.ndarray:
    """One for each coefficient; NaN where there is one group."""
    if len(x) < 2:
        return np.full(len(found), math.nan)
    # (groups, coefficients)
    pulls = np.array([one.T @ (target - one @ found) for one, target in zip(x, y, strict=True)])
    return np.sqrt(np.diag(bread @ (pulls.T @ pulls) @ bread) * len(x) / (len(x) - 1))
