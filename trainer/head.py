"""The logprobs of trained tokens from hidden states, without the graph of [tokens, vocabulary].

The derivative of a token's logprob by its hidden state is a row as long as that state. It is computed with the logits
while these are there, a slice of tokens at a time, and kept in their place: the backward pass only scales it, and what
stays between the passes does not grow with the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.loss import truncation

_LOGITS_BYTES = 64 << 20
"""Of a slice; three arrays of this size are there at once, and more where tokens are truncated."""


def predicted(
    states: Tensor, head: Any, ids: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target under the distribution that the engine samples from, and its entropy in nats.

    As vLLM's ``processed_logprobs``: logits over temperature, then top_k, then top_p on what is left.
    ``states`` (M, H), ``head`` a frozen linear layer with weight (V, H); the rest (M,), with 0 for no top_k and 1 for
    no top_p. Returns two of (M,): the logprobs carry a gradient where the states do, the entropy none.
    """
    # float32: logits rounded to bfloat16 are off by up to 0.06, and so would be the logprobs.
    bias = None if head.bias is None else head.bias.detach().float()
    weight = head.weight.detach().float()
    found: tuple[Tensor, Tensor] = _Predicted.apply(states.float(), weight, bias, ids, temperature, top_p, top_k)  # type: ignore[no-untyped-call]
    return found


class _Predicted(torch.autograd.Function):
    """All tensors float32 but ``ids`` and ``top_k``."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        *sampling: Tensor,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy = states.new_empty(len(states)), states.new_empty(len(states))
        derivative = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        rows = max(1, _LOGITS_BYTES // (4 * len(weight)))
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            logits = torch.nn.functional.linear(states[part], weight, bias)
            temperature, top_p, top_k = (values[part] for values in sampling)
            probability, logprobs[part], entropy[part] = _softmax(logits, ids[part], temperature, top_p, top_k)
            if derivative is not None:
                # of log softmax: (the target's 1 less the probability) over the temperature
                probability.div_(-temperature[:, None])
                probability.scatter_add_(1, ids[part][:, None], (1 / temperature)[:, None])
                torch.mm(probability, weight, out=derivative[part])
        ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(derivative)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # of two outputs
        (derivative,) = ctx.saved_tensors
        return grads[0][:, None] * derivative, None, None, None, None, None, None


def _softmax(
    logits: Tensor, ids: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities (M, V), and logprob and entropy (M,). Overwrites ``logits``."""
    scaled = logits.div_(temperature[:, None])
    kept = truncation(scaled, ids, top_p, top_k)
    if kept is not None:
        scaled.masked_fill_(~kept, float("-inf"))
    scaled.sub_(scaled.amax(dim=-1, keepdim=True))
    probability = scaled.exp()
    total = probability.sum(dim=-1)
    normal = total.log()
    logprobs = scaled.gather(1, ids[:, None])[:, 0] - normal
    probability.div_(total[:, None])
    if kept is not None:
        scaled.masked_fill_(~kept, 0)  # 0 · −∞ is no number
    entropy = normal - torch.einsum("mv,mv->m", probability, scaled)
    return probability, logprobs, entropy.clamp_(min=0)
