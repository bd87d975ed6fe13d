"""Attention of one row of new tokens to itself and to the stems before it, without a mask over both.

Each stem is attended to by a call of its own, as is the row by itself; the parts are joined by the logarithms of their
sums, as in ring attention (arXiv 2310.01889), and the backward pass gives each part its gradient from the joint result.
So what is held grows with the tokens, not with their square; only a row with branches has a mask, over itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

NAME = "slipstream"
Pair = tuple[Tensor, Tensor]
"""Keys and values of one layer, (1, heads, tokens, size)."""
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(slots=True)
class Surroundings:
    """What the attention of one pass is told, beside queries, keys and values."""

    stems: list[dict[int, Pair]] = field(default_factory=list)
    """By layer, the lowest stem first"""
    mask: Tensor | None = None
    """(1, 1, L, L), added to the scores of the row with itself; None: plain causal"""
    kept: dict[int, Pair] | None = None
    """Where this pass leaves its own keys and values, when it is a stem"""
    reached: bool = False
    """Whether the attention of any layer was told"""


def supports(config: Any) -> bool:
    """Whether a model's attention is the plain one: no window, no cap of the scores."""
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    capped = getattr(config, "attn_logit_softcapping", None)
    return not windowed and not capped and kinds == {"full_attention"}


def install(model: Any) -> None:
    """Let a transformers model attend by ``attend``, which a forward pass tells its ``surroundings``."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    model.config._attn_implementation = NAME  # as its setter does, which asks the hub for kernels


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a mask is True, −∞ elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001  (transformers gives it; there is none)
    *,
    scaling: float,
    **told: Any,
) -> tuple[Tensor, None]:
    """Return (B, L, heads, size) of queries (B, heads, L, size); keys and values may have fewer heads."""
    around: Surroundings = told.get("surroundings") or Surroundings()
    around.reached = True
    layer = module.layer_idx
    if around.kept is not None and layer not in around.kept:  # a checkpoint's second forward pass finds it there
        around.kept[layer] = (key, value)
    if around.stems:
        stems = [tensor for stem in around.stems for tensor in stem[layer]]
        out = _Joined.apply(around.mask, scaling, query, key, value, *stems)  # type: ignore[no-untyped-call]
    else:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, around.mask, is_causal=around.mask is None, scale=scaling, enable_gqa=True
        )
    return out.transpose(1, 2).contiguous(), None


class _Joined(torch.autograd.Function):
    """Attention to any number of stems, each wholly visible, and to the row itself, masked or causal."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, scale: float, query: Tensor, *pairs: Tensor) -> Tensor:
        """``pairs``: keys and values of the row itself, then of each stem."""
        parts = [
            _flash(query, pairs[at], pairs[at + 1], 0.0, at == 0 and mask is None, scale=scale, **_masked(mask, at))
            for at in range(0, len(pairs), 2)
        ]
        total = torch.stack([part[1] for part in parts]).logsumexp(dim=0)  # (1, heads, L)
        weights = [(part[1] - total).exp()[..., None] for part in parts]
        joint = sum(part[0] * weight for part, weight in zip(parts, weights, strict=True))
        assert isinstance(joint, Tensor)
        out = joint.to(query.dtype)
        ctx.save_for_backward(mask, query, out, total, *pairs)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mask, query, out, total, *pairs = ctx.saved_tensors
        found: list[Tensor] = []
        of_query: Tensor | None = None
        for at in range(0, len(pairs), 2):
            # With the joint sum in place of the part's own, its scores become the joint probabilities.
            inputs = (grad, query, pairs[at], pairs[at + 1], out, total, 0.0, at == 0 and mask is None)
            part, *of_pair = _flash_backward(*inputs, scale=ctx.scale, **_masked(mask, at))
            of_query = part if of_query is None else of_query + part
            found += of_pair
        return None, None, of_query, *found


def _masked(mask: Tensor | None, at: int) -> dict[str, Tensor | None]:
    return {"attn_mask": mask if at == 0 else None}
