"""Named rewards, and what they make up together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.recorded import a_reward
from tests.trainer.workshop import Workshop
from trainer.client_rewards import combined, of_members


def test_each_name_is_standardised_before_it_is_weighed() -> None:
    """Means 0.5 and 50, deviations 0.5 and 50: the unit of a reward does not count, its weight does."""
    given = [{"won": 0.0, "points": 100.0}, {"won": 1.0, "points": 0.0}]
    assert combined(given, {"won": 1.0, "points": 1.0}, 0.05) == [0.0, 0.0]
    assert combined(given, {"won": 2.0, "points": 1.0}, 0.05) == [-1.0, 1.0]
    assert combined(given, {"won": 1.0, "points": -0.5}, 0.05) == [-1.5, 1.5]
    assert combined(given, {"won": 1.0, "points": 0.0}, 0.05) == [-1.0, 1.0]


def test_a_name_whose_rewards_hardly_differ_says_nothing() -> None:
    given = [{"won": 0.0, "style": 0.50}, {"won": 1.0, "style": 0.54}]
    assert combined(given, {"won": 1.0, "style": 9.0}, 0.05) == [-1.0, 1.0]
    assert combined(given, {"style": 9.0}, 0.05) == [0.0, 0.0]
    assert combined([{"a": 1.0}, {"a": 1.0}], {"a": 1.0}, 0.0) == [0.0, 0.0]


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=8),
    st.floats(0.01, 100), st.floats(-100, 100),
)  # fmt: skip
def test_the_unit_of_a_reward_does_not_count(pairs: list[tuple[float, float]], scale: float, shift: float) -> None:
    weights = {"a": 1.0, "b": 0.5}
    plain = combined([{"a": a, "b": b} for a, b in pairs], weights, 0.0)
    assert sum(plain) == pytest.approx(0, abs=1e-6)
    spread = max(a for a, _ in pairs) - min(a for a, _ in pairs)
    if spread * min(scale, 1.0) > 1e-3 or spread == 0.0:
        other = combined([{"a": scale * a + shift, "b": b} for a, b in pairs], weights, 0.0)
        assert other == pytest.approx(plain, abs=1e-4)


def test_who_lacks_one_of_the_names_lacks_a_reward(workshop: Workshop) -> None:
    one, two = workshop.many([1.0, 2.0])
    keys = [one.key, two.key]
    weights = {"reward": 1.0, "style": 1.0}
    assert of_members(workshop.db, keys, {}, 0.0) == [1.0, 2.0]
    assert of_members(workshop.db, keys, weights, 0.0) is None
    workshop.reward(a_reward(one.session_id, 5.0, name="style"))
    workshop.take_in()
    assert of_members(workshop.db, keys, weights, 0.0) is None
    workshop.reward(a_reward(two.session_id, 3.0, name="style"))
    workshop.take_in()
    assert of_members(workshop.db, keys, weights, 0.0) == [0.0, 0.0]
    assert of_members(workshop.db, keys, {"style": 2.0, "unused": 0.0}, 0.0) == [2.0, -2.0]
    workshop.reward(a_reward(two.session_id, 9.0, name="style", source="admin"))
    workshop.take_in()
    assert of_members(workshop.db, keys, {"style": 1.0}, 0.0) == [-1.0, 1.0], "a later one supersedes"
