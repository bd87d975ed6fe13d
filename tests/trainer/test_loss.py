from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.loss import Loss, Tokens, cispo, divergence, grpo, replay, too_far, truncation


def tokens(
    logprobs: list[float], behaviour: list[float], advantages: list[float], kept: list[bool] | None = None
) -> Tokens:
    return Tokens(
        logprobs=torch.tensor(logprobs, dtype=torch.float64, requires_grad=True),
        behaviour=torch.tensor(behaviour, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        kept=torch.tensor(kept or [True] * len(logprobs)),
    )


def gradient(found: Tensor, of: Tokens) -> list[float]:
    torch.autograd.backward(found)
    assert of.logprobs.grad is not None
    return [float(value) for value in of.logprobs.grad]


@pytest.mark.parametrize("loss", [grpo, cispo, replay])
def test_on_policy_every_loss_is_the_policy_gradient(loss: Callable[[Tokens, float], Loss]) -> None:
    given_tokens = tokens([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.5])
    assert gradient(loss(given_tokens, 4.0).loss, given_tokens) == pytest.approx([-0.125, 0.125])


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "slope", "clipped"),
    [
        (math.log(1.27), 1.0, -1.27, 0),
        (math.log(1.29), 1.0, 0.0, 1),  # already up by more than 28 %
        (math.log(0.5), 1.0, -0.5, 0),
        (math.log(0.81), -1.0, 0.81, 0),
        (math.log(0.79), -1.0, 0.0, 1),  # already down by more than 20 %
        (math.log(3.0), -1.0, 3.0, 0),
    ],
)
def test_grpo_stops_at_the_bound_of_its_direction(
    log_ratio: float, advantage: float, slope: float, clipped: int
) -> None:
    found = tokens([-1.0 + log_ratio], [-1.0], [advantage])
    loss = grpo(found, 1.0)
    assert loss.clipped == clipped
    assert gradient(loss.loss, found) == pytest.approx([slope])


def test_cispo_caps_the_weight_and_keeps_the_gradient() -> None:
    found = tokens([-1.0, -1.0], [-1.0 - math.log(3), -1.0 - math.log(8)], [1.0, 1.0])
    loss = cispo(found, 1.0)
    assert loss.clipped == 1
    assert gradient(loss.loss, found) == pytest.approx([-3.0, -5.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope", "clipped"),
    [
        (0.001, 1.0, -1.0, 0),  # what was good is never too far off to be learned
        (1.5, 1.0, -1.5, 0),
        (8.0, 1.0, -2.0, 1),
        (0.001, -1.0, 0.001, 0),
        (8.0, -1.0, 2.0, 1),
    ],
)
def test_what_is_trained_again_has_a_truncated_weight(
    ratio: float, advantage: float, slope: float, clipped: int
) -> None:
    found = tokens([-1.0], [-1.0 - math.log(ratio)], [advantage])
    loss = replay(found, 1.0)
    assert loss.clipped == clipped
    assert gradient(loss.loss, found) == pytest.approx([slope], rel=1e-5)


Row = tuple[float, float, float, bool]
numbers = st.lists(
    st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-2, 2), st.booleans()), min_size=2, max_size=10
)


def of(rows: list[Row]) -> Tokens:
    logprobs, behaviour, advantages, kept = (list(column) for column in zip(*rows, strict=True))
    return tokens(logprobs, behaviour, advantages, kept)


@given(numbers, st.integers(1, 9))
def test_losses_of_micro_batches_add_up(rows: list[Row], cut: int) -> None:
    cut = min(cut, len(rows) - 1)
    for loss in (grpo, cispo, replay):
        whole = loss(of(rows), 7.0)
        parts = [loss(of(rows[:cut]), 7.0), loss(of(rows[cut:]), 7.0)]
        assert whole.loss.item() == pytest.approx(sum(part.loss.item() for part in parts))
        assert whole.clipped == sum(part.clipped for part in parts)


@given(numbers)
def test_a_dropped_token_changes_nothing(rows: list[Row]) -> None:
    rest = [row for row in rows if row[3]]
    for loss in (grpo, cispo):
        found = of(rows)
        result = loss(found, 7.0)
        expected = loss(of(rest), 7.0) if rest else Loss(torch.tensor(0.0), 0)
        assert result.loss.item() == pytest.approx(expected.loss.item())
        assert result.clipped == expected.clipped
        slopes = gradient(result.loss, found)
        assert not any(slope for slope, row in zip(slopes, rows, strict=True) if not row[3])


@given(numbers)
def test_grpo_takes_the_pessimistic_side(rows: list[Row]) -> None:
    found = of(rows)
    unclipped = -((found.logprobs - found.behaviour).exp() * found.advantages)[found.kept].sum()
    assert grpo(found, 1.0).loss.item() >= unclipped.item() - 1e-9


def test_the_divergence_is_zero_at_the_base_and_positive_elsewhere() -> None:
    base = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    same, other = tokens([-1.0, -2.0], [-1.0, -2.0], [0.0, 0.0]), tokens([-2.0, -1.0], [-1.5, -1.5], [0.0, 0.0])
    assert divergence(same, base, 1.0).item() == 0
    assert divergence(other, base, 1.0).item() > 0
    half, first = tokens([-2.0, -1.0], [-1.5, -1.5], [0.0, 0.0], [True, False]), tokens([-2.0], [-1.5], [0.0])
    assert divergence(half, base, 1.0).item() == divergence(first, base[:1], 1.0).item()


def test_the_divergence_is_unbiased_under_another_behaviour() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, base, behaviour = (
        torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(3)
    )
    exact = float((policy.exp() * (policy - base)).sum())
    # The expectation over the behaviour, in full: every token's estimate, weighted by its probability.
    estimates = [
        divergence(tokens([p], [b], [0.0]), base[[token]], 1.0).item()
        for token, (p, b) in enumerate(zip(policy.tolist(), behaviour.tolist(), strict=True))
    ]
    assert float(behaviour.exp() @ torch.tensor(estimates, dtype=torch.float64)) == pytest.approx(exact)


def test_the_guard_drops_only_bad_sequences_that_have_gone_far() -> None:
    owner = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    behaviour = torch.full((7,), -1.0)
    logprobs = torch.tensor([-1.0, -2.2, -1.0, -1.9, -2.2, -2.2, 0.0])
    advantages = torch.tensor([-1.0, -1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    # means of log μ − log π: 0.6, 0.45, 1.2 (but good), −1
    assert too_far(logprobs, behaviour, advantages, owner, 4).tolist() == [True, False, False, False]


def reference(scaled: Tensor, top_p: float, top_k: int) -> set[int]:
    """Return the tokens inside, as vLLM's ``apply_top_k_top_p`` finds them: one by one from the smallest."""
    order = scaled.argsort().tolist()
    if top_k:
        smallest = scaled.sort(descending=True).values[min(top_k, len(order)) - 1]
        order = [token for token in order if scaled[token] >= smallest]
    total = scaled[order].softmax(0)
    inside, below = set(order), 0.0
    for probability, token in zip(total.tolist(), order, strict=True):
        below += probability
        if below <= 1 - top_p and len(inside) > 1:
            inside.discard(token)
    return inside


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 1.0), st.integers(0, 40), st.integers(1, 30))
def test_truncation_is_exact_and_holds_the_target(seed: int, top_p: float, top_k: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scaled = torch.randn(1, size, generator=generator, dtype=torch.float64) * 3
    target = int(torch.randint(size, (1,), generator=generator))
    kept = truncation(scaled, torch.tensor([target]), torch.tensor([top_p]), torch.tensor([top_k]))
    expected = reference(scaled[0], float(torch.tensor(top_p)), top_k) | {target}
    if kept is None:
        assert expected == set(range(size))
    else:
        assert set(kept[0].nonzero()[:, 0].tolist()) == expected


def test_a_flat_distribution_needs_more_than_the_first_candidates() -> None:
    scaled = torch.linspace(0, 0.01, 5000, dtype=torch.float64)[None]
    kept = truncation(scaled, torch.tensor([4999]), torch.tensor([0.9]), torch.tensor([0]))
    assert kept is not None
    assert kept[0].nonzero()[:, 0].tolist() == sorted(reference(scaled[0], float(torch.tensor(0.9)), 0))


def test_rows_are_truncated_each_by_its_own_rule() -> None:
    scaled = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).repeat(3, 1)
    target = torch.tensor([0, 0, 3])
    kept = truncation(scaled, target, torch.tensor([1.0, 1.0, 0.5]), torch.tensor([0, 2, 0]))
    assert kept is not None
    assert kept.tolist() == [[True] * 4, [True, True, False, False], [True, False, False, True]]
