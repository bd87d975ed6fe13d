"""How good a judge is: groups with planted quality, in which position, length and bribes should not matter.

The judge is that of the settings (SLIPSTREAM_JUDGE_BASE_URL, _MODEL, _API_KEY), or with --small the small model,
through a vLLM that is started for it. What each figure means, and how it is estimated, stands in
scripts/bench/judging/effects.py and docs/judge.md. Run it as ``./scripts/bench/judge [--small] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from scripts import small_model
from scripts.bench.judging import report
from scripts.bench.judging.asking import ask
from scripts.bench.judging.groups import planted
from scripts.services import CannotStart, Services
from storage.settings import UNREADABLE, explain
from trainer.errors import JudgeUnreachable
from trainer.judge import Judge
from trainer.question import Terms
from trainer.settings import TrainerSettings

_SMALL_CONTEXT = 4096
"""With more the small model babbles beyond the judge's patience before its answer ends."""


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    # The table is wider than what is taken for the width where there is no terminal.
    console = Console(width=None if sys.stdout.isatty() else 120)
    groups = planted(options.groups, options.size, options.seed)
    try:
        with _small(console) if options.small else _of_the_settings() as (judge, terms):
            with console.status("asking") as status:
                answers = ask(judge, groups, terms, lambda done: status.update(f"{done} of {len(groups)} groups"))
            judge.close()
    except (CannotStart, JudgeUnreachable) as error:
        sys.exit(f"judge: {error}")
    report.show(console, judge.name, answers)
    if options.json:
        options.json.write_text(json.dumps(report.figures(answers), indent=1) + "\n")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=40, help="how many groups (default: %(default)s)")
    parser.add_argument("--size", type=int, default=8, help="attempts in each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other groups (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="judge with the small model, through real vLLM")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    for name, least in (("groups", 1), ("size", 2)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: at least {least} is wanted")
    return options


@contextlib.contextmanager
def _of_the_settings() -> Iterator[tuple[Judge, Terms]]:
    try:
        settings = TrainerSettings()
    except UNREADABLE as error:
        raise CannotStart(explain(error)) from error
    if not settings.judge_base_url or not settings.judge_model:
        raise CannotStart(
            "no judge is configured: set SLIPSTREAM_JUDGE_BASE_URL and SLIPSTREAM_JUDGE_MODEL, or give --small"
        )
    key = settings.judge_api_key
    judge = Judge(settings.judge_base_url, settings.judge_model, key.get_secret_value() if key else None)
    yield judge, Terms(settings.judge.rubric, settings.judge.context)


@contextlib.contextmanager
def _small(console: Console) -> Iterator[tuple[Judge, Terms]]:
    """The small model behind a vLLM of ours, with the service's other parts beside it."""
    with tempfile.TemporaryDirectory(prefix="slipstream-judge-") as folder:
        os.environ |= {"SLIPSTREAM_DATA": folder, "SLIPSTREAM_VLLM_ARGS": f"--max-model-len {_SMALL_CONTEXT}"}
        services = Services(None, lambda text: console.print(text, highlight=False, soft_wrap=True))
        try:
            services.start()
            vllm = f"http://127.0.0.1:{services.proxy_settings.port + 1}/v1"
            yield Judge(vllm, small_model.NAME, None), Terms(context=_SMALL_CONTEXT)
        finally:
            services.stop()


if __name__ == "__main__":
    main()
