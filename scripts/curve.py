"""The learning curve of a demo: whether it rose, and how it looks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import plotext

PERMUTATIONS = 20_000
SIGNIFICANCE = 0.01


@dataclass(frozen=True, slots=True)
class Attempt:
    """One session of the demo agent, and what it was truly worth."""

    step: int
    scenario: str
    version: str | None
    reward: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """First against last third of the sessions, in the order in which they were played."""

    first: float
    last: float
    p: float
    """How often chance alone, dealing the rewards out anew, gives a difference at least as large."""

    @property
    def learned(self) -> bool:
        return self.last > self.first and self.p < SIGNIFICANCE


def verdict(rewards: Sequence[float]) -> Verdict:
    """One-sided permutation test between the first and the last third of at least 3 rewards."""
    third = len(rewards) // 3
    first, last = np.array(rewards[:third]), np.array(rewards[-third:])
    found = last.mean() - first.mean()
    pool = np.concatenate([first, last])
    chance = np.random.default_rng(0)
    shuffled = chance.permuted(np.tile(pool, (PERMUTATIONS, 1)), axis=1)
    differences = shuffled[:, third:].mean(axis=1) - shuffled[:, :third].mean(axis=1)
    # The small slack keeps rounding from counting an equal difference as a smaller one.
    as_large = int((differences >= found - 1e-12).sum())
    return Verdict(float(first.mean()), float(last.mean()), (as_large + 1) / (PERMUTATIONS + 1))


def means(attempts: Sequence[Attempt]) -> list[float]:
    """The mean reward of each step, from the first on."""
    steps = sorted({attempt.step for attempt in attempts})
    return [float(np.mean([a.reward for a in attempts if a.step == step])) for step in steps]


def in_terminal(attempts: Sequence[Attempt]) -> str:
    """The curve as text."""
    values = means(attempts)
    plotext.clear_figure()
    plotext.plot_size(72, 15)
    plotext.plot(list(range(1, len(values) + 1)), values, marker="braille")
    plotext.ylim(0, 1)
    plotext.yticks([0, 0.25, 0.5, 0.75, 1])
    plotext.xticks(range(1, len(values) + 1))
    plotext.title("mean true reward per step")
    return str(plotext.uncolorize(plotext.build()))


def save_png(attempts: Sequence[Attempt], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    values = means(attempts)
    steps = range(1, len(values) + 1)
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=120)
    for scenario in sorted({a.scenario for a in attempts}):
        of_scenario = [a for a in attempts if a.scenario == scenario]
        axes.plot(steps, means(of_scenario), color="#9db4c0", linewidth=0.8, label="_")
    axes.plot(steps, values, color="#14506b", linewidth=2.2, marker="o", markersize=3.5, label="all scenarios")
    axes.plot([], [], color="#9db4c0", linewidth=0.8, label="each scenario")
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.set(
        xlabel="step (a training run between two)",
        ylabel="mean true reward",
        ylim=(0, 1),
    )
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def save_json(attempts: Sequence[Attempt], found: Verdict, minutes: float, path: Path) -> None:
    document = {
        "minutes": round(minutes, 2),
        "sessions": len(attempts),
        "first_third": found.first,
        "last_third": found.last,
        "p": found.p,
        "learned": found.learned,
        "means": means(attempts),
        "attempts": [asdict(attempt) for attempt in attempts],
    }
    path.write_text(json.dumps(document, indent=1))
