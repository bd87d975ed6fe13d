"""Slipstream on a task: vLLM, proxy and trainer from nothing, with the product's defaults."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from scripts.bench.learning.kept import Part
from scripts.bench.learning.playing import Played, Table, named, play
from scripts.bench.learning.rounds import Curve, Followed, Round
from scripts.bench.learning.tasks import TASKS
from scripts.services import CannotStart, Say, Services, require_free_port

_RUN_TIMEOUT = httpx.Timeout(1800.0, connect=10.0)
_SCORING_SECONDS = 120.0
"""The judge is waited for as long, when the last round was played."""
_PLACES = frozenset({"SLIPSTREAM_HOST", "SLIPSTREAM_PORT", "SLIPSTREAM_VLLM_PYTHON"})
"""The settings of this process's surroundings that say where something is, not how it learns."""
REPLAY = {
    "SLIPSTREAM_TRAIN__REPLAY": "true",
    "SLIPSTREAM_SAMPLING__MODE": "explore",
    "SLIPSTREAM_SAMPLING__TEMPERATURE": "2",
    "SLIPSTREAM_SAMPLING__TOP_K": "50",
}
"""What gets past the second-best word (docs/learning.md says what else was tried)."""


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
    if part.replay:
        os.environ |= REPLAY


def followed(scenarios: Sequence[dict[str, Any]], played: Sequence[Played]) -> tuple[Followed, ...]:
    """Each version that has a progress figure in all ``scenarios`` (as `GET /admin/scenarios` lists them)."""
    effects: defaultdict[int, list[float]] = defaultdict(list)
    for one in scenarios:
        for row in one["progress"].get("ruler", []):
            if row["effect"] is not None and row["reason"] is None:
                effects[row["version"]].append(row["effect"])
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    for session in played:
        rewards[int(session.version.rpartition("@")[2])].append(session.reward)
    return tuple(
        Followed(version, fmean(found), fmean(rewards[version]))
        for version, found in sorted(effects.items())
        if len(found) == len(scenarios) and version in rewards
    )


class _Learning:
    def __init__(self, services: Services, part: Part, table: Table, say: Say) -> None:
        self._part = part
        self._table = table
        self._say = say
        self._mains: list[str] = []
        """The versions that most sessions of a round asked for, one after the other."""
        key = {"Authorization": f"Bearer {services.admin_key}"}
        self._admin = httpx.Client(base_url=services.url, headers=key, timeout=_RUN_TIMEOUT)

    def run(self) -> Curve:
        began = time.monotonic()
        rounds: list[Round] = []
        played: list[Played] = []
        failed = 0
        for number in range(1, self._part.rounds + 1):
            sessions = play(self._table, *self._models())
            ended = [session for session in sessions if session is not None]
            if not ended:
                raise CannotStart(f"round {number}: all {len(sessions)} sessions failed; see the proxy's log")
            failed += len(sessions) - len(ended)
            played += ended
            run = self._train() if number < self._part.rounds else {}
            update = run.get("reason") if run.get("state") != "succeeded" else None
            entropy = (run.get("metrics") or {}).get("entropy")
            rewards = tuple(session.reward for session in ended)
            rounds.append(Round(rewards, time.monotonic() - began, entropy, update))
            self._say(
                f"{self._part.name}: round {number}/{self._part.rounds}, reward {rounds[-1].mean:.3f}, "
                f"{rounds[-1].seconds:.0f} s" + (f"; {update}" if update else "")
            )
        return Curve(tuple(rounds), failed, followed(self._scenarios(), played) if self._part.ranks else ())

    def _models(self) -> tuple[str, str | None]:
        """What sessions ask for; and where a judge ranks, the version before it, which some ask for instead.

        So groups hold both, and the progress figure has something to compare.
        """
        main = named(self._asked("/admin/status")["live"], self._part.lag)
        if self._mains[-1:] != [main]:
            self._mains.append(main)
        older = self._mains[-2] if self._part.ranks and len(self._mains) > 1 else None
        return main if self._part.lag else "agent", older

    def _scenarios(self) -> list[dict[str, Any]]:
        """As they are listed when all rounds are scored."""
        end = time.monotonic() + _SCORING_SECONDS
        while True:
            found: list[dict[str, Any]] = self._asked("/admin/scenarios")["items"]
            groups = [one["groups"] for one in found]
            if all(sum(states.values()) == self._part.rounds and not states.get("ready") for states in groups):
                return found
            if time.monotonic() > end:
                self._say(f"{self._part.name}: not all groups were scored in time: {groups}")
                return found
            time.sleep(1.0)

    def _asked(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._admin.get(path).raise_for_status().json()
        return answer

    def _train(self) -> dict[str, Any]:
        wish: dict[str, Any] = {"wait": True}
        if self._part.loss:
            wish["settings"] = {"loss": self._part.loss}
        response = self._admin.post("/admin/train", json=wish)
        if response.status_code != 200:
            raise CannotStart(f"the run was refused: {response.text}")
        ended: dict[str, Any] = response.json()
        return ended
