"""The demos as a user runs them; nightly, since each takes its minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Report
from tests.e2e.service import PROJECT, free_ports

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]


def run_demo(folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output and figures of ``slipstream demo``."""
    data = folder / "demo"
    command = [sys.executable, "-m", "scripts.cli", "demo", "--data", str(data), *arguments]
    environment = {**os.environ, "SLIPSTREAM_PORT": str(free_ports())}
    ended = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    output = ended.stdout + ended.stderr
    assert (data / "demo.json").exists(), output
    return ended.returncode, output, json.loads((data / "demo.json").read_text())


def told(name: str, figures: dict[str, Any]) -> str:
    means = figures["means"]
    thirds = f"thirds {figures['first_third']:.3f} -> {figures['last_third']:.3f} (p = {figures['p']:.2g})"
    rise = f"mean true reward {means[0]:.3f} -> {means[-1]:.3f}"
    return f"demo {name}: {figures['sessions']} sessions, {figures['minutes']} minutes, {rise}, {thirds}"


def test_the_word_task_is_learned(tmp_path: Path, report: Report) -> None:
    code, output, figures = run_demo(tmp_path)
    report(told("words", figures))
    assert code == 0, output
    assert figures["means"][0] < 0.2
    assert figures["means"][-1] >= 0.6
    assert figures["minutes"] <= 15
    assert (tmp_path / "demo" / "curve.png").stat().st_size > 10_000


def test_the_game_of_several_turns_is_learned(tmp_path: Path, report: Report) -> None:
    code, output, figures = run_demo(tmp_path, "--scenario", "corridor")
    report(told("corridor", figures))
    assert code == 0, output


def test_shuffled_rewards_teach_nothing(tmp_path: Path, report: Report) -> None:
    code, output, figures = run_demo(tmp_path, "--control", "shuffle")
    report(told("words, shuffled", figures))
    assert code == 1, output
    assert "NOT SHOWN TO LEARN" in output
