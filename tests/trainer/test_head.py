"""The head against the formula, which autograd differentiates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trainer import head as heads
from trainer.head import predicted
from trainer.loss import logprobs_and_entropy

TOKENS, WIDTH, VOCABULARY = 7, 5, 11


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def head(request: pytest.FixtureRequest) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, VOCABULARY, bias=request.param).requires_grad_(False)


@pytest.mark.parametrize("rows", [1, 3, TOKENS])
@pytest.mark.parametrize("truncated", [False, True])
def test_values_and_gradient_are_those_of_the_formula(
    head: nn.Linear, rows: int, truncated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_LOGITS_BYTES", 4 * VOCABULARY * rows)
    states = torch.randn(TOKENS, WIDTH) * 2
    ids = torch.arange(TOKENS) % VOCABULARY
    temperature = torch.linspace(0.5, 1.5, TOKENS)
    top_p = torch.tensor([0.7, 1.0] * TOKENS)[:TOKENS] if truncated else torch.ones(TOKENS)
    top_k = torch.tensor([0, 3, 0, 0, 2, 0, 11]) if truncated else torch.zeros(TOKENS, dtype=torch.int64)
    weight = torch.linspace(-1, 2, TOKENS)

    def differentiated(values: tuple[Tensor, Tensor], of: Tensor) -> list[Tensor]:
        torch.autograd.backward((values[0] * weight).sum())
        assert of.grad is not None
        return [values[0].detach(), values[1], of.grad]

    own, formula = (states.clone().requires_grad_() for _ in range(2))
    found = differentiated(predicted(own, head, ids, temperature, top_p, top_k), own)
    wanted = differentiated(logprobs_and_entropy(head(formula), ids, temperature, top_p, top_k), formula)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_nothing_as_large_as_the_logits_is_kept(head: nn.Linear) -> None:
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    states = torch.randn(TOKENS, WIDTH, requires_grad=True)
    ones, zeros = torch.ones(TOKENS), torch.zeros(TOKENS, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        predicted(states, head, zeros, ones, ones, zeros)
    assert kept == [TOKENS * WIDTH]
    with torch.no_grad():
        logprobs, _ = predicted(states, head, zeros, ones, ones, zeros)
    assert not logprobs.requires_grad
