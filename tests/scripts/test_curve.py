import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import curve
from scripts.curve import Attempt, verdict


@pytest.mark.parametrize(
    ("rewards", "first", "last", "learned"),
    [
        ([0.0] * 8 + [0.5] * 8 + [1.0] * 8, 0.0, 1.0, True),
        ([1.0] * 8 + [0.5] * 8 + [0.0] * 8, 1.0, 0.0, False),
        ([0.5] * 30, 0.5, 0.5, False),
        ([0.1, 0.9] * 15, 0.5, 0.5, False),
        # All of three against all of three: 1 of 20 deals is as large, which is not enough.
        ([0, 0, 0, 5, 5, 1, 1, 1], 0.0, 1.0, False),
        ([0.0, 0.0, 1.0], 0.0, 1.0, False),
    ],
)
def test_known_cases(rewards: list[float], first: float, last: float, learned: bool) -> None:
    found = verdict(rewards)
    assert (found.first, found.last) == pytest.approx((first, last))
    assert found.learned is learned


def test_p_is_the_share_of_deals_that_are_as_large() -> None:
    assert verdict([0.5] * 30).p == 1.0
    assert verdict([0, 0, 0, 7, 7, 7, 1, 1, 1]).p == pytest.approx(1 / 20, abs=0.006)
    assert verdict([0, 0, 7, 7, 1, 1]).p == pytest.approx(1 / 6, abs=0.01)
    assert verdict([1, 1, 1, 7, 7, 7, 0, 0, 0]).p == 1.0
    assert verdict([0.0] * 20 + [1.0] * 10 + [1.0] * 20).p == pytest.approx(1 / 20_001)


def test_the_same_data_gives_the_same_verdict() -> None:
    rewards = [0.1, 0.4, 0.2, 0.3, 0.9, 0.5, 0.6, 0.2, 0.7]
    assert verdict(rewards) == verdict(rewards)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=40))
@settings(deadline=None, max_examples=15)
def test_any_rewards(rewards: list[float]) -> None:
    found = verdict(rewards)
    assert 0 < found.p <= 1
    assert found.learned == (found.last > found.first and found.p < 0.01)


def test_where_chance_deals_there_is_rarely_a_verdict() -> None:
    chance = random.Random(5)
    false = sum(verdict([chance.random() for _ in range(30)]).learned for _ in range(40))
    assert false <= 3


def attempts() -> list[Attempt]:
    return [
        Attempt(step, scenario, f"policy@{step}", (step + place) / 4)
        for step in range(3)
        for place, scenario in enumerate(("a", "b"))
    ]


def test_the_curve_is_the_mean_of_each_step() -> None:
    assert curve.means(attempts()) == [0.125, 0.375, 0.625]
    assert "mean true reward per step" in curve.in_terminal(attempts())


def test_what_is_kept(tmp_path: Path) -> None:
    curve.save_json(attempts(), verdict([a.reward for a in attempts()]), 1.234, tmp_path / "curve.json")
    kept = json.loads((tmp_path / "curve.json").read_text())
    assert (kept["minutes"], kept["sessions"], kept["learned"], kept["means"]) == (
        1.23,
        6,
        False,
        [0.125, 0.375, 0.625],
    )
    assert kept["attempts"][0] == {"step": 0, "scenario": "a", "version": "policy@0", "reward": 0.0}
