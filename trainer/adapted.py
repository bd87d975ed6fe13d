"""A linear layer with its LoRA adapter, for the CPU: in the precision of the model, and in as few passes as can be.

peft computes the adapter's part in float32, at full width: each layer copies its input and its output into float32 and
keeps the copies for the backward pass. Here x, and x·Aᵀ of as many columns as the rank, are all that is kept; the
weights of the adapter stay float32 and are rounded where they are used, as vLLM and mixed precision on a GPU do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor


def install(model: Any) -> None:
    """Let every LoRA layer of a peft model that holds a plain linear layer compute as ``_Adapted`` does."""
    from peft.tuners.lora import Linear

    for module in model.modules():
        if isinstance(module, Linear) and isinstance(module.base_layer, torch.nn.Linear):
            module.forward = partial(_forward, module)


def _forward(layer: Any, x: Tensor) -> Tensor:
    base = layer.base_layer
    if layer.disable_adapters:
        found: Tensor = base(x)
        return found
    (name,) = layer.active_adapters
    weights = (base.weight, base.bias, layer.lora_A[name].weight, layer.lora_B[name].weight)
    adapted: Tensor = _Adapted.apply(x, *weights, layer.scaling[name])  # type: ignore[no-untyped-call]
    return adapted


class _Adapted(torch.autograd.Function):
    """y = x·Wᵀ + bias + scale · (x·Aᵀ)·Bᵀ, with gradients for x, A and B. W is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        """x (..., in), weight (out, in), a (rank, in), b (out, rank); returns (..., out)."""
        a, b = a.to(x.dtype), b.to(x.dtype)
        low = x @ a.t()
        out = torch.nn.functional.linear(x, weight, bias)
        out.view(-1, out.shape[-1]).addmm_(low.view(-1, low.shape[-1]), b.t(), alpha=scale)
        ctx.save_for_backward(x, weight, a, b, low)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``grad`` (..., out) has the model's precision; what A and B are given is float32, as they are."""
        x, weight, a, b, low = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])  # (N, out)
        of_low = (rows @ b).mul_(ctx.scale)  # (N, rank)
        of_a = of_low.t() @ x.reshape(-1, x.shape[-1])
        of_b = (rows.t() @ low.view(-1, low.shape[-1])).mul_(ctx.scale)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = (rows @ weight).addmm_(of_low, a).view(x.shape)
        return of_x, None, None, of_a, of_b, None
