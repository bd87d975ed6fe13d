"""What curves say: quarters, intervals, collapses, and the figures of a task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from scripts.bench.learning.rounds import Curve, Round

RESAMPLES = 2000
CERTAIN_ENTROPY = 0.05
"""Nats a token: below it a model says always the same."""
GOOD_REWARD = 0.7
"""From here on saying always the same is what was to be learned."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and between what it lies with 95 %."""

    mean: float
    low: float
    high: float


def interval(rewards: Sequence[float]) -> Interval:
    """Percentile bootstrap of the mean over at least one session (Efron 1979); the same for the same rewards."""
    values = np.asarray(rewards, dtype=np.float64)
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))  # (resamples, sessions)
    low, high = np.percentile(drawn.mean(axis=1), (2.5, 97.5))
    return Interval(float(values.mean()), float(low), float(high))


def last_quarter(curve: Curve) -> tuple[Round, ...]:
    """The last rounds, a quarter of all, rounded up."""
    return curve.rounds[-math.ceil(len(curve.rounds) / 4) :]


def final(curve: Curve) -> float:
    """The mean reward over the sessions of the last quarter."""
    return fmean(reward for one in last_quarter(curve) for reward in one.rewards)


def collapsed(curve: Curve) -> bool:
    """Whether the last quarter fell below half of the best round, or the model became certain of something bad."""
    if final(curve) < max(curve.means) / 2:
        return True
    return any(
        one.entropy is not None and one.entropy < CERTAIN_ENTROPY and one.mean < GOOD_REWARD for one in curve.rounds
    )


def progress_rank_correlation(curve: Curve) -> float | None:
    """Spearman's, of the progress figure and the true mean reward over the versions; ties have their mean rank.

    None where there are fewer than three versions, or nothing differs.
    """
    if len(curve.progress) < 3:
        return None
    # What differs by less than this is a tie that the sums of floats have split.
    figures = np.round([[one.effect, one.reward] for one in curve.progress], 9).T  # (2, versions)
    ranks = (figures[:, :, None] > figures[:, None, :]).sum(axis=2) - (figures[:, :, None] < figures[:, None, :]).sum(2)
    if not ranks.any(axis=1).all():
        return None
    return float(np.corrcoef(ranks)[0, 1])


def of_task(ours: Mapping[int, Curve], peer: Mapping[int, Curve]) -> dict[str, Any]:
    """The figures of a task from the curves by seed; what was not run is None."""
    curves = list(ours.values())
    correlations = [found for found in map(progress_rank_correlation, curves) if found is not None]
    return {
        "ours_first": fmean(curve.means[0] for curve in curves) if curves else None,
        "ours_last_quarter": fmean(map(final, curves)) if curves else None,
        "trl_last_quarter": fmean(map(final, peer.values())) if peer else None,
        "collapsed": sum(map(collapsed, curves)) if curves else None,
        "progress_rank_correlation": fmean(correlations) if correlations else None,
        "rollouts": curves[0].rollouts if curves else None,
        "minutes": fmean(curve.minutes for curve in curves) if curves else None,
        "trl_minutes": fmean(curve.minutes for curve in peer.values()) if peer else None,
        "seeds": {str(seed): final(curve) for seed, curve in ours.items()},
        "trl_seeds": {str(seed): final(curve) for seed, curve in peer.items()},
    }
