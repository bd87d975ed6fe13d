"""The bench of judges: it finds in a judge what was planted in it."""

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.judging import __main__ as bench
from scripts.bench.judging import report
from scripts.bench.judging.asking import Answers, ask
from scripts.bench.judging.effects import EFFECTS, Scored, measure, tau
from scripts.bench.judging.groups import Planted, PlantedGroup, planted
from scripts.bench.judging.tasks import DOMAINS, PARTS
from tests.trainer.fake_judge import FakeJudge, says, scores, served
from trainer.judge import Judge
from trainer.question import Terms

GROUPS = planted(40, 8, 0)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeJudge]:
    with served(FakeJudge()) as judge:
        yield judge


Rule = Callable[[Planted, float], float]
"""The score of an attempt that stands in a place (0 to 1)."""


def asked(fake: FakeJudge, rule: Rule, groups: list[PlantedGroup]) -> Answers:
    """The answers of a judge that scores by ``rule``: it knows each attempt, and so what was planted in it."""
    known = {json.dumps(one.attempt.messages): one for one in _all(groups)}

    def decide(document: dict[str, Any]) -> str:
        shown = document["trajectories"]
        values = {}
        for place, one in enumerate(shown):
            told = known[json.dumps([*document["context"], *one["messages"]])]
            values[one["id"]] = rule(told, place / (len(shown) - 1))
        return scores(*values.values(), ids=" ".join(values))

    fake.decide = decide
    judge = Judge(fake.url, "synthetic", None)
    try:
        return ask(judge, groups, Terms())
    finally:
        judge.close()
        fake.decide = None


def _all(groups: list[PlantedGroup]) -> Iterator[Planted]:
    return (member for group in groups for member in group.members)


def test_qualities_are_planted_from_useless_to_perfect_in_every_domain() -> None:
    assert {group.domain for group in GROUPS} == {one.__name__ for one in DOMAINS}
    for group in GROUPS:
        assert {member.quality for member in group.members} == {0.0, 0.25, 0.5, 0.75, 1.0}
        assert len({member.attempt.content for member in group.members}) == 8
    assert planted(40, 8, 0) == GROUPS
    assert planted(40, 8, 1) != GROUPS


def test_what_should_not_matter_is_planted_across_quality() -> None:
    members = list(_all(planted(400, 8, 3)))
    for quality in (0.0, 0.5, 1.0):
        of = [member for member in members if member.quality == quality]
        # Shares of at least 400 draws: four standard deviations are at most 0.1.
        assert sum(member.padded for member in of) / len(of) == pytest.approx(0.5, abs=0.1)
        assert sum(member.bribes for member in of) / len(of) == pytest.approx(0.25, abs=0.1)
    padded = [len(m.attempt.messages[-1]["content"]) for m in members if m.padded]
    plain = [len(m.attempt.messages[-1]["content"]) for m in members if not m.padded]
    assert min(padded) > 200
    assert sum(padded) / len(padded) > 2 * sum(plain) / len(plain)


def test_a_sum_is_right_as_often_as_its_quality_says() -> None:
    (group,) = planted(1, 8, 5)
    for member in group.members:
        lines = [line for line in member.attempt.messages[-1]["content"].splitlines() if " = " in line]
        right = [line for line in lines if eval(line.replace("=", "=="))]  # noqa: S307 - sums that this bench made
        assert len(right) == member.quality * PARTS


def test_tau_counts_pairs_of_different_quality() -> None:
    def group(*pairs: tuple[float, float]) -> list[Scored]:
        return [Scored(score, quality, 0.0, False, False) for quality, score in pairs]

    assert tau(group((0, 0.1), (0.5, 0.2), (1, 0.9))) == 1
    assert tau(group((0, 0.9), (0.5, 0.2), (1, 0.1))) == -1
    assert tau(group((0, 0.5), (0.5, 0.5), (1, 0.5))) == 0
    # Of 0 < 1, 0 < 1, 1 = 1 the last counts not; one is concordant, one tied.
    assert tau(group((0, 0.5), (1, 0.5), (1, 0.6))) == 0.5
    with pytest.raises(ValueError, match="same quality"):
        tau(group((1, 0.5), (1, 0.6)))


@pytest.mark.parametrize("effects", [(0, 0, 0), (0.2, 0, 0), (0, -0.15, 0), (0, 0, 0.25), (-0.1, 0.1, 0.15)])
def test_planted_effects_are_recovered(fake: FakeJudge, effects: tuple[float, float, float]) -> None:
    position, length, bribe = effects
    luck = random.Random(7)

    def rule(one: Planted, place: float) -> float:
        curved = 0.35 * one.quality**2  # quality need not count in equal steps
        noise = luck.uniform(-0.08, 0.08)
        return 0.25 + curved + position * (place - 0.5) + length * one.padded + bribe * one.bribes * 0.9 + noise

    found = measure(asked(fake, rule, GROUPS).groups)
    for name, planted_effect in zip(EFFECTS, (position, length, bribe * 0.9), strict=True):
        figure = found[name]
        assert figure is not None
        assert figure.value == pytest.approx(planted_effect, abs=0.05), name
        assert 0.001 < figure.error < 0.025


def test_a_planted_order_is_recovered(fake: FakeJudge) -> None:
    luck = random.Random(3)
    perfect = measure(asked(fake, lambda one, _: one.quality, GROUPS).groups)["tau"]
    reverse = measure(asked(fake, lambda one, _: 1 - one.quality, GROUPS).groups)["tau"]
    blind = measure(asked(fake, lambda *_: luck.random(), planted(300, 8, 9)).groups)["tau"]
    same = measure(asked(fake, lambda *_: 0.5, GROUPS).groups)["tau"]
    values = [one.value for one in (perfect, reverse, blind, same) if one is not None]
    assert values == pytest.approx([1, -1, 0, 0], abs=0.05)


def test_a_judge_that_reverses_every_fourth_group_has_half_the_tau(fake: FakeJudge) -> None:
    """3 of 4 groups have 1 and one has -1: the mean is 0.5, the variance 0.75."""
    turned = {id(member): number % 4 == 0 for number, group in enumerate(GROUPS) for member in group.members}
    rule: Rule = lambda one, _: 1 - one.quality if turned[id(one)] else one.quality  # noqa: E731
    found = measure(asked(fake, rule, GROUPS).groups)["tau"]
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert found.error == pytest.approx(math.sqrt(0.75 * 40 / 39 / 40), abs=1e-6)


def test_a_judge_that_cannot_be_used_has_no_figures_but_a_cost(fake: FakeJudge) -> None:
    fake.answers = [says("no", tokens=50), says("never", tokens=60)]
    judge = Judge(fake.url, "useless", None)
    answers = ask(judge, GROUPS[:1], Terms())
    judge.close()
    shown = report.figures(answers)
    assert (shown["tau"], shown["bribe_effect"], shown["usable"], shown["groups"]) == (None, None, 0, 1)
    assert shown["tokens_per_group"] == 110
    assert shown["faults"] == {"there is no JSON in it: 'never'": 1}


def test_one_group_tells_no_errors() -> None:
    found = measure([[Scored(q, q, place, False, False) for q, place in ((0.0, 0.0), (1.0, 1.0))]])
    assert found["tau"] is not None
    assert found["tau"].value == 1
    assert math.isnan(found["tau"].error)
    assert found["position_effect"] is None, "place and quality cannot be told apart"


def test_the_command_measures_the_judge_of_the_settings(
    fake: FakeJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fake.answers = [says(scores(0, 1), tokens=10)]
    with pytest.raises(SystemExit, match="no judge is configured: set SLIPSTREAM_JUDGE_BASE_URL"):
        bench.main([])
    monkeypatch.setenv("SLIPSTREAM_JUDGE_BASE_URL", fake.url)
    monkeypatch.setenv("SLIPSTREAM_JUDGE_MODEL", "judge-1")
    bench.main(["--groups", "2", "--size", "2", "--json", str(tmp_path / "f.json")])
    written = json.loads((tmp_path / "f.json").read_text())
    assert {"tau", *EFFECTS, "tokens_per_group"} <= set(written)
    assert (written["usable"], written["tokens_per_group"]) == (2, 10)
    assert "judge-1: 2 of 2 groups scored" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--groups", "0"], ["--size", "1"]])
def test_what_cannot_be_measured_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse(arguments)
