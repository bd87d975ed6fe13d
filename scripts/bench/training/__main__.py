"""What an update costs, beside TRL on the same recorded sessions, in one run and in turns.

TRL's GRPOTrainer is fed with one row per call and with one row per session, each at its best batch size; the limit is
Unsloth's plain forward and backward over the unique tokens. Every contender runs in a process of its own. Run it as
``./scripts/bench/train [--quick] [--memory] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from scripts.bench.training import report, rows, sessions
from scripts.bench.training.measure import OURS, SIZES, TRL, best_way, in_turns
from scripts.bench.training.processes import Contender
from scripts.bench.training.sessions import ATTEMPTS, Plan
from scripts.services import MODELS, CannotStart, find_model
from trainer.batches import Batch

FULL, QUICK = Plan(groups=1, turns=8), Plan(groups=1, turns=2)
LENGTHS, QUICK_LENGTHS = (2048, 4096, 6144, 8192), (512, 1024)
ANSWER = 40
"""Every other run of as many tokens of the long session is trained."""
ANOTHER = 1
"""The version that sampled it: not the parent, whose own tokens must have the logprobs that the parent gives them."""


def main() -> None:
    options = parse(None)
    # The table is wider than what is taken for the width where there is no terminal.
    console = Console(width=None if sys.stdout.isatty() else 120)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    try:
        with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
            model = find_model(None, say, MODELS / "model.log")
            if options.memory:
                found = memory(model, Path(folder), QUICK_LENGTHS if options.quick else LENGTHS, console)
            else:
                plan = QUICK if options.quick else Plan(options.groups, FULL.turns)
                found = compare(model, Path(folder), plan, options, console)
    except CannotStart as error:
        sys.exit(f"train: {error}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=FULL.groups, help="of 8 sessions of 8 turns (default: 1)")
    parser.add_argument("--rounds", type=int, default=2, help="updates of each contender (default: 2)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="batch sizes to try TRL at")
    parser.add_argument("--memory", action="store_true", help="measure the memory of long sessions instead")
    parser.add_argument("--quick", action="store_true", help="few and short sessions: whether it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    for name in ("groups", "rounds", "sizes"):
        if np.min(getattr(options, name)) < 1:
            parser.error(f"--{name}: at least 1 is wanted")
    return options


def compare(model: str, folder: Path, plan: Plan, options: argparse.Namespace, console: Console) -> dict[str, float]:
    """All contenders on the sessions of ``plan``."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    path = folder / "batch.safetensors"
    sessions.recorded(Path(model), plan).save(path)
    say("the model says its logprobs of the recorded answers")
    with Contender("score", model, path) as scorer:
        scorer.step()
        scorer.close()
    batch = Batch.load(path)
    unique = sum(len(row) for row in rows.unique(batch, batch.trained_tokens))
    size = report.Size(plan.groups * ATTEMPTS, batch.trained_tokens, unique)
    counts = dict(zip(TRL, (len(rows.per_call(batch)), len(rows.per_session(batch))), strict=True))
    ways = {name: best_way((name, model, path), options.sizes, count, say) for name, count in counts.items()}
    found = in_turns(model, path, ways, options.rounds, say)
    report.show(console, found, size)
    return report.figures(found, size)


def memory(model: str, folder: Path, lengths: tuple[int, ...], console: Console) -> dict[str, Any]:
    """The peak of an update on one linear session, a process for each length."""
    peaks: dict[int, float] = {}
    chance = np.random.default_rng(0)
    for length in lengths:
        trained = (np.arange(length) // ANSWER % 2 == 1).tolist()
        sequence = sessions.plain(chance.integers(100, 40000, length).tolist(), trained, ANOTHER)
        path = folder / f"{length}.safetensors"
        Batch((sequence,), np.ones(1, dtype=np.float32)).save(path)
        with Contender(OURS, model, path) as ours:
            taken = ours.step()
            if "failed" in taken:
                raise CannotStart(f"{length} tokens: {taken['failed']}")
            peaks[length] = ours.close()
        console.print(f"{length} tokens: {peaks[length]:.0f} MB, {taken['wall']:.0f} s", highlight=False)
    return report.show_memory(console, peaks)


if __name__ == "__main__":
    main()
