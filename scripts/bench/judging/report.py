"""The figures as tables and as JSON."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.bench.judging.asking import Answers
from scripts.bench.judging.effects import EFFECTS, Figure, measure

MEANING = {
    "tau": "order of the scores with the planted one: 1 the same, 0 none, -1 the reverse",
    "position_effect": "last place over first, points of the score",
    "length_effect": "padded over not padded",
    "bribe_effect": "bribing over not bribing",
}


def figures(answers: Answers) -> dict[str, Any]:
    """What `--json` writes; null where the judge's answers do not tell."""
    found = measure(answers.groups)
    shown: dict[str, Any] = {name: None if one is None else one.value for name, one in found.items()}
    shown |= {f"{name}_error": _error(one) for name, one in found.items()}
    return shown | {
        "tokens_per_group": answers.tokens / answers.asked,
        "groups": answers.asked,
        "usable": len(answers.groups),
        "faults": dict(answers.faults.most_common()),
    }


def show(console: Console, judge: str, answers: Answers) -> None:
    title = f"{judge}: {len(answers.groups)} of {answers.asked} groups scored"
    table = Table("figure", "value", "standard error", "meaning", title=title)
    shown = figures(answers)
    for name in ("tau", *EFFECTS):
        value, error = shown[name], shown[f"{name}_error"]
        table.add_row(
            name, "-" if value is None else f"{value:+.3f}", "-" if error is None else f"{error:.3f}", MEANING[name]
        )
    table.add_row("tokens_per_group", f"{shown['tokens_per_group']:.0f}", "", "prompts and answers, repairs among them")
    console.print(table)
    for fault, count in answers.faults.most_common(5):
        console.print(f"{count} not scored: {fault[:300]}", markup=False, highlight=False)


def _error(figure: Figure | None) -> float | None:
    return None if figure is None or math.isnan(figure.error) else figure.error
