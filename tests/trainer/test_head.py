"""The head against the formula, which autograd differentiates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from trainer import head as heads
from trainer.head import predicted
from trainer.loss import truncation

TOKENS, WIDTH, VOCABULARY = 7, 5, 11


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def head(request: pytest.FixtureRequest) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, VOCABULARY, bias=request.param).requires_grad_(False)


def formula(
    states: Tensor, head: nn.Linear, ids: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor
) -> tuple[Tensor, Tensor]:
    scaled = head(states) / temperature[:, None]
    kept = truncation(scaled.detach(), ids, top_p, top_k)
    if kept is not None:
        scaled = scaled.masked_fill(~kept, float("-inf"))
    everything = scaled.log_softmax(dim=-1)
    return everything.gather(1, ids[:, None])[:, 0], torch.special.entr(everything.detach().exp()).sum(dim=-1)


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

    own, plain = (states.clone().requires_grad_() for _ in range(2))
    found = differentiated(predicted(own, head, ids, temperature, top_p, top_k), own)
    wanted = differentiated(formula(plain, head, ids, temperature, top_p, top_k), plain)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def of_logits(logits: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    """The head that hands its input on."""
    same = nn.Linear(logits.shape[1], logits.shape[1], bias=False)
    same.weight = nn.Parameter(torch.eye(logits.shape[1]), requires_grad=False)
    return predicted(logits, same, *rest)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 2.0), st.floats(0.1, 1.0), st.integers(0, 12))
def test_logprobs_are_those_of_a_distribution(seed: int, temperature: float, top_p: float, top_k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 12, generator=generator) * 3
    cool, bound, most = torch.tensor([temperature]), torch.tensor([top_p]), torch.tensor([top_k])
    kept = truncation(logits / cool, logits.argmax(dim=-1), bound, most)
    inside = torch.arange(12) if kept is None else kept[0].nonzero()[:, 0]
    count = len(inside)
    rest = (values.repeat(count) for values in (cool, bound, most))
    found, entropy = of_logits(logits.repeat(count, 1), inside, *rest)
    assert float(found.exp().sum()) == pytest.approx(1, abs=1e-5)
    assert entropy.tolist() == pytest.approx([float(-(found.exp() * found).sum())] * count, abs=1e-5)


def test_a_target_outside_its_set_has_a_finite_logprob_and_gradient() -> None:
    logits = torch.tensor([[5.0, 4.0, -20.0]], requires_grad=True)
    found, _ = of_logits(logits, torch.tensor([2]), torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([1]))
    assert found.tolist() == pytest.approx([-25.0], abs=1e-5)
    torch.autograd.backward(found.sum())
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert float(logits.grad[0, 1]) == 0  # outside, and not the target


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
