"""From rewards to advantages: how much better an attempt was than the others of its group.

The advantage is the reward minus the group's mean. It is not divided by the group's standard deviation (as GRPO
does, arXiv 2402.03300): with 4 to 8 members that is mostly noise, and it weighs up groups that are nearly solved or
nearly hopeless (Dr. GRPO, arXiv 2503.20783).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SMALLEST_SPREAD = 1e-6
"""Rewards that lie closer together than this (highest minus lowest) are equal."""


def advantages(rewards: Sequence[float], *, divide: bool = False) -> tuple[float, ...] | None:
    """Return one advantage per reward of a group, or None when the group teaches nothing.

    None stands for a group with fewer than two members, or without variance: every advantage would be 0,
    so its forward pass can be saved and its sessions told why.

    The advantages sum to 0 (to rounding), and are in the reward's unit; with ``divide`` in standard deviations of the
    group, as GRPO has them.

    Raises ``ValueError`` when a reward is not finite.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite numbers, got {list(rewards)}")
    if len(rewards) < 2 or max(rewards) - min(rewards) < SMALLEST_SPREAD:
        return None
    mean = math.fsum(rewards) / len(rewards)
    centred = tuple(reward - mean for reward in rewards)
    if not divide:
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return tuple(value / deviation for value in centred)
