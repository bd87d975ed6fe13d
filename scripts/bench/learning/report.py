"""The table of what was learned, and the curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from scripts.bench.learning.figures import collapsed, final, interval, last_quarter, progress_rank_correlation
from scripts.bench.learning.kept import Part
from scripts.bench.learning.rounds import Curve

_COLORS = {"ours": "#14506b", "trl": "#c05a2b"}


def show(console: Console, curves: Mapping[Part, Curve]) -> None:
    table = Table(
        Column("part", no_wrap=True),
        "rollouts",
        "minutes",
        "first round",
        "best round",
        "last quarter",
        "95 %",
        Column("collapsed", no_wrap=True),
        "rank corr.",
    )
    for part, curve in curves.items():
        found = interval([reward for one in last_quarter(curve) for reward in one.rewards])
        correlation = progress_rank_correlation(curve)
        table.add_row(
            part.name,
            str(curve.rollouts) + (f" ({curve.failed} failed)" if curve.failed else ""),
            f"{curve.minutes:.1f}",
            f"{curve.means[0]:.3f}",
            f"{max(curve.means):.3f}",
            f"{final(curve):.3f}",
            f"{found.low:.3f} to {found.high:.3f}",
            "yes" if collapsed(curve) else "no",
            "" if correlation is None else f"{correlation:.3f}",
        )
    console.print(table)


def save_png(curves: Mapping[Part, Curve], path: Path) -> None:
    """True reward against rollouts and against minutes; a line a seed, with the 95 % interval of each round."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(10, 3.8), dpi=120, sharey=True)
    styles = ["-", "--", ":", "-."]
    for number, (part, curve) in enumerate(curves.items()):
        found = [interval(one.rewards) for one in curve.rounds]
        size = [len(one.rewards) for one in curve.rounds]
        rollouts = [sum(size[: index + 1]) for index in range(len(size))]
        minutes = [one.seconds / 60 for one in curve.rounds]
        look = {"color": _COLORS[part.contender], "linestyle": styles[number % len(styles)]}
        for axes, places in zip(both, (rollouts, minutes), strict=True):
            axes.plot(places, curve.means, label=part.name, linewidth=1.4, **look)
            low, high = [one.low for one in found], [one.high for one in found]
            axes.fill_between(places, low, high, color=look["color"], alpha=0.12)
    for axes, label in zip(both, ("rollouts", "minutes"), strict=True):
        axes.set(xlabel=label, ylim=(0, 1))
        axes.grid(alpha=0.25)
    both[0].set_ylabel("mean true reward of a round")
    both[0].legend(loc="upper left", fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
