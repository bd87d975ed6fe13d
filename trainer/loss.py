"""The mathematics of an update, as pure functions of tensors.

Shapes: T trained tokens of one micro-batch in a row, N sequences, M rows of logits, V the vocabulary.

The ratio is π/μ, straight to the logprob μ that the engine recorded when it sampled the token; no pass for
"old" logprobs (as in TRL's async GRPO and prime-rl). The clip or cap of the ratio is then the importance
correction itself: a truncated factor on top would correct twice. Ratios are taken per token; products over
a session explode.

Every loss is a sum over tokens divided by ``normaliser``, one number for the whole optimizer step (DAPO,
arXiv 2503.14476; ``Batch.trained_tokens``), so that the losses of micro-batches simply add up. Left out: the mean
per sequence (it favours short wrong answers), value functions, an entropy bonus.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CISPO_CAP = 5.0
"""ε_max of ScaleRL (arXiv 2510.13786)."""
REPLAY_CAP = 2.0
"""Of the ratio of tokens that are trained again."""
GUARD = 0.5
"""Mean log μ − log π above which a sequence with a negative advantage is dropped (arXiv 2512.02556)."""
_FIRST_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class Tokens:
    """The trained tokens of a micro-batch."""

    logprobs: Tensor
    """(T,) log π under the weights being trained, with their gradient"""
    behaviour: Tensor
    """(T,) log μ as recorded"""
    advantages: Tensor
    """(T,) of each token's sequence"""
    kept: Tensor
    """(T,) bool: False takes a token out of the loss, as ``too_far`` says of its sequence"""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss, and how many tokens the clip or cap held back (a count, to be added up)."""

    loss: Tensor
    """scalar"""
    clipped: int


def grpo(tokens: Tokens, normaliser: float, *, clip_low: float = 0.2, clip_high: float = 0.28) -> Loss:
    """PPO's clipped objective per token with DAPO's asymmetric bounds (arXiv 2402.03300, 2503.14476).

    −min(r·A, clip(r, 1 − low, 1 + high)·A), r = π/μ. A token whose ratio has already moved past the bound
    in the direction of its advantage has no gradient; those are counted as clipped.
    """
    ratio = (tokens.logprobs - tokens.behaviour).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    plain, clipped = ratio * tokens.advantages, bounded * tokens.advantages
    objective = torch.minimum(plain, clipped)[tokens.kept]
    held = (clipped < plain)[tokens.kept]
    return Loss(-objective.sum() / normaliser, int(held.sum()))


def cispo(tokens: Tokens, normaliser: float, *, cap: float = CISPO_CAP) -> Loss:
    """REINFORCE with a capped importance weight: −sg(min(r, cap))·A·log π (MiniMax-M1, arXiv 2506.13585).

    Unlike the clip of ``grpo`` the cap never silences a token.
    """
    ratio = (tokens.logprobs.detach() - tokens.behaviour).exp()
    objective = (ratio.clamp(max=cap) * tokens.advantages * tokens.logprobs)[tokens.kept]
    held = (ratio > cap)[tokens.kept]
    return Loss(-objective.sum() / normaliser, int(held.sum()))


def replay(tokens: Tokens, normaliser: float) -> Loss:
    """The loss of groups that are trained again: −sg(w)·A·log π, w = min(r, 2), and at least 1 where A > 0.

    However unlikely the policy finds by now what was good, it is learned with its whole weight; what was bad is pushed
    down only as far as the policy still says it. Tokens above the cap are counted as clipped.
    """
    ratio = (tokens.logprobs.detach() - tokens.behaviour).exp()
    weight = ratio.clamp(max=REPLAY_CAP)
    weight = torch.where(tokens.advantages > 0, weight.clamp(min=1), weight)
    objective = (weight * tokens.advantages * tokens.logprobs)[tokens.kept]
    return Loss(-objective.sum() / normaliser, int((ratio > REPLAY_CAP)[tokens.kept].sum()))


def divergence(tokens: Tokens, base_logprobs: Tensor, normaliser: float) -> Tensor:
    """KL(π ‖ base) as an unbiased estimate from the recorded tokens; a scalar to add to the loss.

    r·k3 with k3 = e^d − d − 1, d = log base − log π (Schulman's estimator), and r = π/μ since the tokens
    were sampled from μ (DeepSeek-V3.2, arXiv 2512.02556). The gradient runs through both factors.
    ``base_logprobs`` is (T,) without gradient.
    """
    difference = base_logprobs - tokens.logprobs
    ratio = (tokens.logprobs - tokens.behaviour).exp()
    return (ratio * (difference.exp() - difference - 1))[tokens.kept].sum() / normaliser


def too_far(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, owner: Tensor, count: int) -> Tensor:
    """Tell which sequences to drop: A < 0 and mean(log μ − log π) > 0.5 (DeepSeek-V3.2, arXiv 2512.02556).

    To push further down what the policy has already stopped saying teaches nothing, and harms. The tokens of a
    dropped sequence still count in the divisor of the loss.
    ``owner`` (T,) is the number of each token's sequence, below ``count``. Returns bool (count,).
    """
    zeros = behaviour.new_zeros(count)
    drift = zeros.index_add(0, owner, behaviour - logprobs.detach())
    tokens = zeros.index_add(0, owner, torch.ones_like(behaviour))
    worst = zeros.scatter_reduce(0, owner, advantages, reduce="amin")
    return (worst < 0) & (drift / tokens.clamp(min=1) > GUARD)


def truncation(scaled: Tensor, targets: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor | None:
    """Tell which tokens top_k and top_p leave in: bool (M, V), or None when no row is truncated.

    ``scaled`` (M, V) are logits over temperature; the rest (M,), with 1 for no top_p and 0 for no top_k. The target
    always stays in: where the engines' rounding puts it just outside, its logprob would be −∞.
    Tokens that tie with the last one inside are inside, as in vLLM for top_k. Exact; the whole vocabulary is
    sorted only for rows whose mass within ``top_p`` needs more than the first thousand tokens.
    """
    rows = ((top_k > 0) | (top_p < 1)).nonzero()[:, 0]
    if len(rows) == 0:
        return None
    kept = torch.ones_like(scaled, dtype=torch.bool)
    kept[rows] = scaled[rows] >= _thresholds(scaled[rows], top_p[rows], top_k[rows])[:, None]
    kept.scatter_(1, targets[:, None], True)
    return kept


def _thresholds(scaled: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Return the smallest logit that stays, per row (M,)."""
    vocabulary = scaled.shape[1]
    limit = torch.where(top_k > 0, top_k, vocabulary).clamp(max=vocabulary)  # (M,)
    need = int(limit[top_k > 0].max()) if bool((top_k > 0).any()) else 1
    size = min(max(need, _FIRST_CANDIDATES), vocabulary)
    while True:
        values = scaled.topk(size, dim=-1).values  # (M, size), falling
        rank = torch.arange(size, device=scaled.device)[None, :]
        inside_k = rank < limit[:, None]
        # Of the whole vocabulary where top_k is off, of the k best where it is on.
        best = values.masked_fill(~inside_k, float("-inf")).logsumexp(dim=-1)
        total = torch.where(top_k > 0, best, scaled.logsumexp(dim=-1))
        mass = (values - total[:, None]).exp().masked_fill(~inside_k, 0)
        before = mass.cumsum(dim=-1) - mass
        inside = inside_k & ((before < top_p[:, None]) | (rank == 0))
        last = inside.sum(dim=-1) - 1
        cut_short = (last == size - 1) & (limit > size)
        if size == vocabulary or not bool(cut_short.any()):
            return values.gather(1, last[:, None])[:, 0]
        size = vocabulary
