"""The probe's verdict: the right adapter, and everything that could stand in its place."""

from __future__ import annotations

import random

import pytest

from proxy.probe import ProbeRow, Verdict, judge
from storage.types import CallId

NOISE = 0.05
"""Nats: how far the two engines are apart on one token."""


def moves(scale: float, n: int = 120) -> list[float]:
    """An update's effect on n tokens."""
    chance = random.Random(7)
    return [chance.gauss(0, scale) for _ in range(n)]


def served(trained: list[float], slope: float, noise: float = NOISE) -> list[float]:
    chance = random.Random(11)
    return [slope * move + chance.gauss(0, noise) for move in trained]


@pytest.mark.parametrize("scale", [0.2, 0.5, 2.0])
def test_the_right_adapter_moves_as_trained(scale: float) -> None:
    trained = moves(scale)
    result = judge(trained, served(trained, 1.0))
    assert result.verdict is Verdict.MOVED
    assert result.slope == pytest.approx(1.0, abs=0.1)
    assert result.tokens == 120


def test_exactly_the_trained_logprobs() -> None:
    trained = moves(0.5)
    result = judge(trained, trained)
    assert (result.verdict, result.slope, result.standard_error) == (Verdict.MOVED, 1.0, 0.0)


@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize(("what", "slope"), [("the parent", 0.0), ("half of it", 0.5), ("twice", 2.0), ("base", -2.0)])
def test_what_is_not_the_adapter_is_found(scale: float, what: str, slope: float) -> None:
    trained = moves(scale)
    assert judge(trained, served(trained, slope)).verdict is Verdict.WRONG


def test_the_parent_to_the_last_bit_is_found() -> None:
    trained = moves(0.5)
    assert judge(trained, [0.0] * len(trained)).verdict is Verdict.WRONG


@pytest.mark.parametrize("slope", [-2.0, 0.0, 0.5])
def test_another_adapter_that_moves_much_is_found(slope: float) -> None:
    """Its own moves make the slope wide: wide is not the same as without power."""
    trained = moves(0.6, 60)
    assert judge(trained, served(trained, slope, noise=1.2)).verdict is Verdict.WRONG


@pytest.mark.parametrize("scale", [0.001, 0.01])
def test_an_update_that_moved_nothing_is_known_by_its_name_only(scale: float) -> None:
    trained = moves(scale)
    assert judge(trained, served(trained, 1.0)).verdict is Verdict.IDENTITY_ONLY


@pytest.mark.parametrize("trained", [[], [1.0], [0.0, 0.0]])
def test_too_little_to_judge(trained: list[float]) -> None:
    result = judge(trained, trained)
    assert (result.verdict, result.slope) == (Verdict.IDENTITY_ONLY, None)
    assert result.as_dict()["tokens"] == len(trained)


@pytest.mark.parametrize(("positions", "logprobs"), [([1], []), ([0], [0.0]), ([], []), ([-1], [0.0]), ([1, 1], [0.0])])
def test_a_row_that_cannot_be_asked_for_is_refused(positions: list[int], logprobs: list[float]) -> None:
    with pytest.raises(ValueError, match="a probe"):
        ProbeRow(CallId("c"), 0, positions, logprobs, logprobs)
