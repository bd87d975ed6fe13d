from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages import SMALLEST_SPREAD, advantages

rewards = st.lists(st.floats(-100, 100), min_size=2, max_size=16)


def test_the_mean_is_taken_off() -> None:
    assert advantages([1.0, 0.0, 0.5, 0.5]) == (0.5, -0.5, 0.0, 0.0)


@pytest.mark.parametrize("same", [[], [1.0], [0.3, 0.3, 0.3], [0.1 + 0.2, 0.3]])
def test_a_group_that_teaches_nothing_is_none(same: list[float]) -> None:
    assert advantages(same) is None


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        advantages([1.0, wrong])


@given(rewards)
def test_they_sum_to_nothing_and_keep_the_order(values: list[float]) -> None:
    found = advantages(values)
    if found is None:
        assert max(values) - min(values) < SMALLEST_SPREAD
        return
    assert sum(found) == pytest.approx(0, abs=1e-9)
    for a, b, x, y in zip(values, values[1:], found, found[1:], strict=False):
        assert (a < b) <= (x <= y)


@given(rewards, st.floats(-50, 50))
def test_a_constant_on_every_reward_changes_nothing(values: list[float], shift: float) -> None:
    before, after = advantages(values), advantages([value + shift for value in values])
    if before is not None and after is not None:
        assert after == pytest.approx(before, abs=1e-9)


def test_they_can_be_had_in_standard_deviations() -> None:
    assert advantages([1.0, 0.0], divide=True) == (1.0, -1.0)
    assert advantages([3.0, 1.0, 1.0, 3.0], divide=True) == (1.0, -1.0, -1.0, 1.0)
    assert advantages([0.5, 0.5], divide=True) is None
