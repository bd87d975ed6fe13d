"""Slipstream on a task: vLLM, proxy and trainer from nothing, with the product's defaults."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from scripts.bench.learning.kept import Part
from scripts.bench.learning.playing import Table, named, play
from scripts.bench.learning.rounds import Curve, Round
from scripts.bench.learning.tasks import TASKS
from scripts.services import CannotStart, Say, Services, require_free_port

_RUN_TIMEOUT = httpx.Timeout(1800.0, connect=10.0)
_PLACES = frozenset({"SLIPSTREAM_HOST", "SLIPSTREAM_PORT", "SLIPSTREAM_VLLM_PYTHON"})
"""The settings of this process's surroundings that say where something is, not how it learns."""


def learn(part: Part, say: Say) -> Curve:
    """Play and train ``part`` in a data folder of its own, which is deleted. Raises `CannotStart`."""
    task = TASKS[part.task]
    with tempfile.TemporaryDirectory(prefix="slipstream-learn-") as folder:
        set_variables(Path(folder), part)
        services = Services(None, say)
        services.check()
        judge_port = services.proxy_settings.port + 2
        try:
            if part.ranks:
                require_free_port("127.0.0.1", judge_port)
                os.environ["SLIPSTREAM_JUDGE_BASE_URL"] = f"http://127.0.0.1:{judge_port}/v1"
                os.environ["SLIPSTREAM_JUDGE_MODEL"] = "rubric-judge"
                command = [sys.executable, "-m", "scripts.agents.rubric_judge", "--port", str(judge_port)]
                services.run_beside("judge", command)
            services.start()
            return _Learning(services, part, Table(services.url, task.agent, not part.ranks), say).run()
        finally:
            services.stop()


def set_variables(folder: Path, part: Part) -> None:
    """The product's defaults, whatever stands in the surroundings. Raises `CannotStart` where a settings file does."""
    if Path("slipstream.toml").exists():
        raise CannotStart(
            "a slipstream.toml lies here, and the product's defaults are measured: move it away meanwhile"
        )
    for name in [name for name in os.environ if name.startswith("SLIPSTREAM_") and name not in _PLACES]:
        del os.environ[name]
    os.environ |= {
        "SLIPSTREAM_DATA": str(folder / "data"),
        # Runs are asked for, one after each round; none starts by itself before the round is over.
        "SLIPSTREAM_TRAINER__GROUPS": "1000",
        "SLIPSTREAM_VLLM_ARGS": f"--seed {part.seed}",
    }


class _Learning:
    def __init__(self, services: Services, part: Part, table: Table, say: Say) -> None:
        self._part = part
        self._table = table
        self._say = say
        key = {"Authorization": f"Bearer {services.admin_key}"}
        self._admin = httpx.Client(base_url=services.url, headers=key, timeout=_RUN_TIMEOUT)

    def run(self) -> Curve:
        began = time.monotonic()
        rounds: list[Round] = []
        failed = 0
        for number in range(1, self._part.rounds + 1):
            found = play(self._table, self._model())
            rewards = tuple(reward for reward in found if reward is not None)
            if not rewards:
                raise CannotStart(f"round {number}: all {len(found)} sessions failed; see the proxy's log")
            failed += len(found) - len(rewards)
            run = self._train() if number < self._part.rounds else {}
            update = run.get("reason") if run.get("state") != "succeeded" else None
            entropy = (run.get("metrics") or {}).get("entropy")
            rounds.append(Round(rewards, time.monotonic() - began, entropy, update))
            self._say(
                f"{self._part.name}: round {number}/{self._part.rounds}, reward {rounds[-1].mean:.3f}, "
                f"{rounds[-1].seconds:.0f} s" + (f"; {update}" if update else "")
            )
        return Curve(tuple(rounds), failed)

    def _model(self) -> str:
        if not self._part.lag:
            return "agent"
        return named(self._admin.get("/admin/status").raise_for_status().json()["live"], self._part.lag)

    def _train(self) -> dict[str, Any]:
        wish: dict[str, Any] = {"wait": True}
        if self._part.loss:
            wish["settings"] = {"loss": self._part.loss}
        response = self._admin.post("/admin/train", json=wish)
        if response.status_code != 200:
            raise CannotStart(f"the run was refused: {response.text}")
        ended: dict[str, Any] = response.json()
        return ended
