"""What is learned: real vLLM, proxy and trainer on SmolLM2, with the product's defaults, beside TRL's GRPOTrainer.

True reward against rollouts and minutes. Each part (a seed of a contender on a task) is kept when it has ended, and
not run again. Run it as ``./scripts/bench/learn [--task word] [--seeds 101] [--rollouts 1152] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from scripts.bench.learning import figures, ours, peer, report
from scripts.bench.learning.kept import Kept, Part
from scripts.bench.learning.playing import ATTEMPTS
from scripts.bench.learning.rounds import Curve
from scripts.bench.learning.tasks import TASKS
from scripts.services import MODELS, PROJECT, CannotStart, find_model

SEEDS = (101, 102, 103)
"""Nothing was tuned on them."""
ROLLOUTS, QUICK_ROLLOUTS = 1152, 192
FOLDER = PROJECT / ".bench" / "learn"


def main() -> None:
    options = parse(None)
    # The table is wider than what is taken for the width where there is no terminal.
    console = Console(width=None if sys.stdout.isatty() else 120)
    kept = Kept(FOLDER)
    if options.fresh:
        kept.forget()
    curves: dict[Part, Curve] = {}
    try:
        for part in parts(options):
            curves[part] = kept.get(part) or _run(part, console)
            kept.put(part, curves[part])
    except CannotStart as error:
        sys.exit(f"learn: {error}")
    report.show(console, curves)
    if options.json:
        options.json.write_text(json.dumps(by_task(curves), indent=1) + "\n")
    if options.plot:
        report.save_png(curves, options.plot)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=list(TASKS), help="may be repeated (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--rollouts", type=int, help=f"per seed (default: {ROLLOUTS}, with --quick {QUICK_ROLLOUTS})")
    parser.add_argument("--quick", action="store_true", help="one seed and few rollouts: whether it runs")
    parser.add_argument("--trl", action=argparse.BooleanOptionalAction, default=True, help="TRL on the word tasks")
    parser.add_argument("--ours", action=argparse.BooleanOptionalAction, default=True, help="Slipstream")
    parser.add_argument(
        "--lag", type=int, nargs="+", default=[0], choices=range(5), help="versions that answer is behind"
    )
    parser.add_argument("--ranks", action="store_true", help="a judge that only ranks scores, over two versions")
    parser.add_argument("--replay", action="store_true", help="replay, and sampling that explores")
    parser.add_argument("--loss", choices=["grpo", "cispo"], help="default: the product's")
    parser.add_argument("--fresh", action="store_true", help="forget the parts that were kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves there (PNG)")
    options = parser.parse_args(arguments)
    options.task = options.task or [name for name, task in TASKS.items() if task.ranked or not options.ranks]
    for name in options.task:
        if options.ranks and not TASKS[name].ranked:
            parser.error(f"--ranks: the judge does not know the task {name}; it knows word and game")
    if options.rollouts is None:
        options.rollouts = QUICK_ROLLOUTS if options.quick else ROLLOUTS
    if options.quick:
        options.seeds = options.seeds[:1]
    least = 4 * ATTEMPTS * max(len(TASKS[name].scenarios) for name in options.task)
    if options.rollouts < least:
        parser.error(f"--rollouts: at least {least} are wanted, which are four rounds")
    return options


def parts(options: argparse.Namespace) -> list[Part]:
    """What is to be run, one after the other; TRL has no part in updates that lag, ranks and replay."""
    found = []
    for task in options.task:
        rounds = options.rollouts // (ATTEMPTS * len(TASKS[task].scenarios))
        for seed in options.seeds:
            for lag in options.lag if options.ours else ():
                found.append(Part("ours", task, seed, rounds, lag, options.ranks, options.replay, options.loss))
            if options.trl and TASKS[task].worths and not (any(options.lag) or options.ranks or options.replay):
                found.append(Part("trl", task, seed, rounds))
    return found


def by_task(curves: dict[Part, Curve]) -> dict[str, dict[str, Any]]:
    """The figures of each task that was run, and of each lag by itself (``word-lag2``)."""
    found: dict[str, dict[str, dict[int, Curve]]] = {}
    for part, curve in curves.items():
        name = f"{part.task}-lag{part.lag}" if part.lag else part.task
        found.setdefault(name, {"ours": {}, "trl": {}})[part.contender][part.seed] = curve
    return {name: figures.of_task(of_each["ours"], of_each["trl"]) for name, of_each in found.items()}


def _run(part: Part, console: Console) -> Curve:
    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    if part.contender == "ours":
        return ours.learn(part, say)
    say(f"{part.name}: TRL trains in a process of its own")
    return peer.learn(part, find_model(None, say, MODELS / "model.log"))


if __name__ == "__main__":
    main()
