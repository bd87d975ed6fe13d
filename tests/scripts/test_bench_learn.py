"""What the bench of learning says of curves, what it runs, and what it keeps; the runs themselves need a model."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.capture import Exploration
from proxy.settings import ProxySettings
from scripts.agents import words
from scripts.bench.learning import __main__ as bench
from scripts.bench.learning import report
from scripts.bench.learning.figures import (
    collapsed,
    final,
    interval,
    last_quarter,
    of_task,
    progress_rank_correlation,
)
from scripts.bench.learning.kept import Kept, Part
from scripts.bench.learning.ours import REPLAY, followed, set_variables
from scripts.bench.learning.peer import as_curve
from scripts.bench.learning.playing import Played, named
from scripts.bench.learning.rounds import Curve, Followed, Round
from scripts.bench.learning.tasks import OTHER_WORDS
from scripts.services import CannotStart
from trainer.settings import TrainerSettings


def curve(*means: float, entropies: tuple[float | None, ...] | None = None) -> Curve:
    """Rounds of two sessions, a minute each."""
    found = entropies or (1.0,) * len(means)
    pairs = enumerate(zip(means, found, strict=True), 1)
    return Curve(tuple(Round((mean, mean), 60.0 * number, entropy) for number, (mean, entropy) in pairs))


@pytest.mark.parametrize(("rounds", "last"), [(1, 1), (4, 1), (5, 2), (8, 2), (24, 6), (25, 7)])
def test_a_last_quarter_is_rounded_up(rounds: int, last: int) -> None:
    assert len(last_quarter(curve(*[0.5] * rounds))) == last


def test_the_last_quarter_counts_sessions_alike() -> None:
    rounds = [Round((0.0,), 1, None)] * 3 + [Round((1.0,), 1, None)] * 3
    uneven = Curve((*rounds, Round((0.0, 0.0, 0.0), 1, None), Round((1.0,), 1, None)))
    assert final(uneven) == 0.25


@pytest.mark.parametrize(
    ("means", "entropies", "expected"),
    [
        ((0.1, 0.4, 0.8, 0.8), (1.0, 0.5, 0.1, None), False),
        # Below half of its best; exactly half is not below.
        ((0.1, 0.8, 0.5, 0.39), (1.0, 1.0, 1.0, 1.0), True),
        ((0.1, 0.8, 0.5, 0.40), (1.0, 1.0, 1.0, 1.0), False),
        # Certain of something bad, at any time; certain of something good is what was to be learned.
        ((0.1, 0.5, 0.5, 0.5), (1.0, 0.04, 1.0, 1.0), True),
        ((0.1, 0.7, 0.7, 0.7), (1.0, 0.04, 0.04, 0.04), False),
        ((0.1, 0.5, 0.5, 0.5), (1.0, 0.05, 1.0, 1.0), False),
        ((0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), False),
    ],
)
def test_a_collapse(means: tuple[float, ...], entropies: tuple[float | None, ...], expected: bool) -> None:
    assert collapsed(curve(*means, entropies=entropies)) is expected


def test_an_interval_of_equal_rewards_is_a_point() -> None:
    found = interval([0.75] * 48)
    assert (found.mean, found.low, found.high) == (0.75, 0.75, 0.75)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_an_interval_holds_its_mean_within_the_rewards(rewards: list[float]) -> None:
    found = interval(rewards)
    slack = 1e-9
    assert min(rewards) - slack <= found.low <= found.high <= max(rewards) + slack
    assert found == interval(rewards)


def test_an_interval_holds_the_true_mean_about_19_times_of_20() -> None:
    chance = random.Random(7)
    drawn = [interval([float(chance.random() < 0.5) for _ in range(48)]) for _ in range(200)]
    assert 180 <= sum(one.low <= 0.5 <= one.high for one in drawn) <= 199


def test_the_figures_of_a_task() -> None:
    ours = {1: curve(0.0, 0.5, 0.75, 0.75), 2: curve(0.2, 0.8, 0.3, 0.25)}
    found = of_task(ours, {1: curve(0.1, 0.2, 0.3, 0.6)})
    assert found["ours_first"] == pytest.approx(0.1)
    assert found["ours_last_quarter"] == pytest.approx(0.5)
    assert found["trl_last_quarter"] == pytest.approx(0.6)
    assert (found["collapsed"], found["rollouts"], found["minutes"]) == (1, 8, 4.0)
    assert found["seeds"] == pytest.approx({"1": 0.75, "2": 0.25})


@pytest.mark.parametrize(
    ("effects", "rewards", "expected"),
    [
        ([0.0, 0.3, 0.9, 1.0], [0.1, 0.2, 0.3, 0.7], 1.0),
        ([0.0, 0.3, 0.9, 1.0], [0.7, 0.3, 0.2, 0.1], -1.0),
        # 1 - 6 * (1 + 1 + 0 + 0) / (4 * 15): the first two have changed places.
        ([0.0, 0.3, 0.9, 1.0], [0.2, 0.1, 0.3, 0.7], 0.8),
        # Ranks 1, 2, 3.5, 3.5 beside 1, 2, 3, 4; equal but for the last digits of floats is equal.
        ([0.0, 0.1, 0.3, 0.1 + 0.2], [0.1, 0.2, 0.3, 0.7], 4.5 / (4.5 * 5.0) ** 0.5),
        ([0.0, 0.3], [0.1, 0.2], None),
        ([0.0, 0.0, 0.0], [0.1, 0.2, 0.3], None),
    ],
)
def test_the_rank_correlation_of_progress(effects: list[float], rewards: list[float], expected: float | None) -> None:
    progress = [Followed(version, *pair) for version, pair in enumerate(zip(effects, rewards, strict=True))]
    found = replace(curve(0.1, 0.2), progress=tuple(progress))
    assert progress_rank_correlation(found) == (None if expected is None else pytest.approx(expected))
    assert of_task({1: found, 2: curve(0.1)}, {})["progress_rank_correlation"] == progress_rank_correlation(found)


def test_progress_is_followed_where_every_scenario_tells_it() -> None:
    def row(version: int, effect: float | None, reason: str | None = None) -> dict[str, Any]:
        return {"version": version, "effect": effect, "reason": reason}

    scenarios = [
        {"progress": {"ruler": [row(0, 0.0), row(1, 0.2), row(2, 0.5), row(3, 0.1, "unconnected")]}},
        {"progress": {"ruler": [row(0, 0.0), row(1, 0.4), row(2, None), row(3, 0.1)], "client": [row(2, 9.0)]}},
    ]
    played = [Played("a", f"policy@{version}", reward) for version, reward in [(0, 0.1), (0, 0.3), (1, 0.5), (2, 0.6)]]
    found = followed(scenarios, played)
    assert [one.version for one in found] == [0, 1]
    assert [one.effect for one in found] == pytest.approx([0.0, 0.3])
    assert [one.reward for one in found] == pytest.approx([0.2, 0.5])


def test_what_was_not_run_has_no_figure() -> None:
    found = of_task({}, {1: curve(0.1, 0.6)})
    assert found["ours_first"] is found["ours_last_quarter"] is found["collapsed"] is None
    assert of_task({1: curve(0.1, 0.6)}, {})["trl_last_quarter"] is None


@pytest.mark.parametrize(
    ("live", "lag", "expected"),
    [
        ("policy@7", 2, "policy@5"),
        ("policy@7", 0, "policy@7"),
        ("policy@3", 4, "policy@0"),
        ("a@b@6", 4, "a@b@2"),
    ],
)
def test_the_version_that_answers_lags(live: str, lag: int, expected: str) -> None:
    assert named(live, lag) == expected


def test_the_second_word_task_has_another_order() -> None:
    best = [max(worths, key=lambda word: worths[word]) for worths in (words.WORDS, OTHER_WORDS)]
    assert best == ["maybe", "yes"]
    assert words.reward("Yes.", OTHER_WORDS) == 1.0
    assert words.reward("no way", OTHER_WORDS) == pytest.approx(0.05)


def test_trls_rounds_end_where_the_next_generation_has() -> None:
    found = as_curve([(5.0, (0.0, 1.0)), (9.0, (1.0, 1.0))], [0.7, 0.6], 12.0)
    assert found.rounds == (Round((0.0, 1.0), 9.0, 0.7), Round((1.0, 1.0), 12.0, 0.6))


def test_a_finished_part_is_kept_until_it_is_forgotten(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "parts")
    part = Part("ours", "word", 1, 4)
    assert kept.get(part) is None
    done = replace(curve(0.1, 0.2, entropies=(0.5, None)), progress=(Followed(0, 0.0, 0.5),))
    kept.put(part, done)
    assert kept.get(part) == done
    kept.forget()
    assert kept.get(part) is None


def test_no_two_parts_share_a_place() -> None:
    one = Part("ours", "word", 1, 4)
    others = [
        Part("trl", "word", 1, 4),
        Part("ours", "word2", 1, 4),
        Part("ours", "word", 2, 4),
        Part("ours", "word", 1, 5),
        Part("ours", "word", 1, 4, lag=2),
        Part("ours", "word", 1, 4, ranks=True),
        Part("ours", "word", 1, 4, replay=True),
        Part("ours", "word", 1, 4, loss="cispo"),
    ]
    assert len({part.name for part in [one, *others]}) == len(others) + 1


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (
            ["--task", "word", "--seeds", "5", "--rollouts", "480"],
            ["ours-word-seed5-10rounds", "trl-word-seed5-10rounds"],
        ),
        (["--task", "game", "--seeds", "5", "--rollouts", "480"], ["ours-game-seed5-10rounds"]),
        (["--task", "word", "--quick", "--no-trl"], ["ours-word-seed101-4rounds"]),
        (["--task", "word", "--quick", "--no-ours"], ["trl-word-seed101-4rounds"]),
        (
            ["--task", "word", "--quick", "--lag", "0", "2"],
            ["ours-word-seed101-4rounds", "ours-word-seed101-4rounds-lag2"],
        ),
        (["--task", "word", "--quick", "--replay"], ["ours-word-seed101-4rounds-replay"]),
        (["--quick", "--ranks"], ["ours-word-seed101-4rounds-ranks", "ours-game-seed101-4rounds-ranks"]),
    ],
)
def test_what_is_run(arguments: list[str], names: list[str]) -> None:
    assert [part.name for part in bench.parts(bench.parse(arguments))] == names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--task", "word2", "--ranks"], "does not know the task word2"),
        (["--task", "word", "--rollouts", "191"], "at least 192"),
        (["--task", "chess"], "chess"),
        (["--lag", "5"], "5"),
    ],
)
def test_what_cannot_be_run_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse(arguments)
    assert said in capsys.readouterr().err


def test_the_figures_stand_under_their_task_and_are_drawn(tmp_path: Path) -> None:
    curves = {
        Part("ours", "word", 1, 4): curve(0.1, 0.2, 0.3, 0.4),
        Part("trl", "word", 1, 4): curve(0.1, 0.2, 0.3, 0.3),
        Part("ours", "game", 1, 4): curve(0.5, 0.6, 0.7, 0.8),
        Part("ours", "word", 1, 4, lag=2): curve(0.1, 0.1, 0.2, 0.2),
    }
    found = bench.by_task(curves)
    assert list(found) == ["word", "game", "word-lag2"]
    assert [found[name]["ours_last_quarter"] for name in found] == pytest.approx([0.4, 0.8, 0.2])
    assert found["word"]["trl_last_quarter"] == pytest.approx(0.3)
    assert found["game"]["trl_last_quarter"] is None
    assert found["game"]["progress_rank_correlation"] is None
    report.save_png(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_the_products_defaults_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    surroundings = {
        "SLIPSTREAM_TRAIN__LOSS": "grpo",
        "SLIPSTREAM_JUDGE_MODEL": "m",
        "SLIPSTREAM_PORT": "9",
        "HOME": "/",
    }
    with patch.dict(os.environ, surroundings, clear=True):
        set_variables(tmp_path, Part("ours", "word", 7, 4))
        assert dict(os.environ) == {
            "HOME": "/",
            "SLIPSTREAM_PORT": "9",
            "SLIPSTREAM_DATA": str(tmp_path / "data"),
            "SLIPSTREAM_TRAINER__GROUPS": "1000",
            "SLIPSTREAM_VLLM_ARGS": "--seed 7",
        }
        set_variables(tmp_path, Part("ours", "word", 7, 4, replay=True))
        assert {name: os.environ[name] for name in REPLAY} == REPLAY
        assert ProxySettings().sampling.exploration == Exploration(2.0, 1.0, 50)
        assert TrainerSettings().train.replay


def test_a_settings_file_is_not_measured_as_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slipstream.toml").write_text("")
    with patch.dict(os.environ), pytest.raises(CannotStart, match="move it away"):
        set_variables(tmp_path, Part("ours", "word", 7, 4))
