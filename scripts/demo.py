"""The demo: a plain agent works in rounds, and the loop around it turns: record, group, score, train, load."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live
from rich.table import Table

from proxy.settings import ProxySettings
from scripts import curve
from scripts.agents import corridor, words
from scripts.curve import Attempt
from scripts.services import CannotStart, Services, require_free_port
from storage.text import counted
from trainer.settings import TrainerSettings

ATTEMPTS = 8
_LOOK_SECONDS = 0.5
_RUN_TIMEOUT = httpx.Timeout(1800.0, connect=10.0)


class Task(StrEnum):
    WORDS = "words"
    CORRIDOR = "corridor"


class Control(StrEnum):
    NONE = "none"
    SHUFFLE = "shuffle"


_AGENTS = {Task.WORDS: words.AGENT, Task.CORRIDOR: corridor.AGENT}


@dataclass(frozen=True, slots=True)
class Options:
    task: Task
    steps: int
    model: str | None
    control: Control
    keep: bool
    data: Path | None


@dataclass(slots=True)
class _Progress:
    """What the live table shows."""

    step: int = 0
    doing: str = "starting"
    attempts: list[Attempt] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)

    def count(self, kind: str, *states: str) -> int:
        counts: dict[str, int] = self.status.get(kind, {})
        return sum(n for state, n in counts.items() if not states or state in states)

    def of_step(self) -> str:
        rewards = [a.reward for a in self.attempts if a.step == self.step]
        return f"{sum(rewards) / len(rewards):.3f}" if rewards else "-"


def run(options: Options) -> int:
    """Play the demo; returns the exit code: 0 when the agent was shown to have become better."""
    console = Console()
    signal.signal(signal.SIGTERM, _as_interrupt)
    data = options.data or Path.cwd() / "demo-data" / f"{options.task}-{time.strftime('%Y%m%d-%H%M%S')}"
    if (data / "slipstream.db").exists():
        raise CannotStart(f"{data} holds an earlier run: give a new folder, since the demo shows a start from nothing")
    real_judge = TrainerSettings().judge_base_url
    if real_judge and options.control is Control.SHUFFLE:
        raise CannotStart("--control shuffle is a matter of the stand-in judge: unset SLIPSTREAM_JUDGE_BASE_URL")
    judge_port = ProxySettings().port + 2
    os.environ.update(_variables(options, data, None if real_judge else judge_port))
    services = Services(options.model, lambda text: console.print(text, highlight=False, soft_wrap=True))
    services.check()
    try:
        console.print(
            f"task: {_AGENTS[options.task].description} {options.steps} steps, {ATTEMPTS} sessions a scenario",
            soft_wrap=True,
        )
        if real_judge:
            console.print(f"judge: {real_judge}")
        else:
            _start_judge(services, options, judge_port, console)
        services.start()
        began = time.monotonic()
        demo = _Demo(services, options, console)
        demo.play()
        code = demo.finish((time.monotonic() - began) / 60, data)
        if options.keep:
            console.print("The servers stay up until Ctrl-C.")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
        return code
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    finally:
        services.stop()


def _variables(options: Options, data: Path, judge_port: int | None) -> dict[str, str]:
    scenarios = len(list(_AGENTS[options.task].scenarios))
    variables = {
        "SLIPSTREAM_DATA": str(data),
        "SLIPSTREAM_GROUP__SIZE": str(ATTEMPTS),
        # The demo asks for a run after each of its rounds; none starts by itself before the round is over.
        "SLIPSTREAM_TRAINER__GROUPS": str(10 * scenarios),
    }
    if judge_port is not None:
        variables["SLIPSTREAM_JUDGE_BASE_URL"] = f"http://127.0.0.1:{judge_port}/v1"
        variables["SLIPSTREAM_JUDGE_MODEL"] = "rubric-judge"
    return variables


def _start_judge(services: Services, options: Options, port: int, console: Console) -> None:
    require_free_port("127.0.0.1", port)
    console.print(
        "judge: a stand-in for an LLM judge, which ranks each group by the demo task's known rule "
        "(set SLIPSTREAM_JUDGE_BASE_URL, _MODEL and _API_KEY to ask a real one)",
        soft_wrap=True,
    )
    command = [sys.executable, "-m", "scripts.agents.rubric_judge", "--port", str(port), "--control", options.control]
    services.run_beside("judge", command)


class _Demo:
    def __init__(self, services: Services, options: Options, console: Console) -> None:
        self._services = services
        self._options = options
        self._console = console
        self._progress = _Progress()
        key = {"Authorization": f"Bearer {services.admin_key}"}
        self._admin = httpx.Client(base_url=services.url, headers=key, timeout=_RUN_TIMEOUT)

    def play(self) -> None:
        with self._shown():
            for step in range(1, self._options.steps + 1):
                self._progress.step = step
                self._work(step)
                if step < self._options.steps:
                    self._train()
                self._tell()

    def _work(self, step: int) -> None:
        """One round of the agent, an ordinary program that knows nothing of what happens around it."""
        self._progress.doing = "the agent works"
        command = [sys.executable, "-m", f"scripts.agents.{self._options.task}"]
        command += ["--base-url", f"{self._services.url}/v1", "--attempts", str(ATTEMPTS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
            try:
                problem = self._follow(agent, step)
            finally:
                agent.kill()
        if agent.returncode:
            raise CannotStart(f"the demo agent ended with {agent.returncode}: {problem.strip()}")

    def _follow(self, agent: subprocess.Popen[str], step: int) -> str:
        """Take in the agent's sessions as they end; returns what it says on stderr."""
        assert agent.stdout is not None
        assert agent.stderr is not None
        for line in agent.stdout:
            outcome = json.loads(line)
            if outcome.get("error"):
                self._console.print(f"a session failed: {outcome['error']}")
                continue
            attempt = Attempt(step, outcome["scenario"], outcome["version"], outcome["reward"])
            self._progress.attempts.append(attempt)
        problem = agent.stderr.read()
        agent.wait()
        return problem

    def _train(self) -> None:
        self._progress.doing = "groups are scored, a run is trained"
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self._admin.post, "/admin/train", json={"wait": True})
            while not asked.done():
                self._look()
                concurrent.futures.wait([asked], timeout=_LOOK_SECONDS)
        response = asked.result()
        if response.status_code != 200:
            raise CannotStart(f"the run was refused: {response.text}")
        ended = response.json()
        if ended["state"] == "failed":
            self._console.print(f"run {ended['id']} failed: {ended['reason']}")

    def _look(self) -> None:
        self._progress.status = self._admin.get("/admin/status").json()

    def _tell(self) -> None:
        self._look()
        if not self._console.is_terminal:
            self._console.print(self._line(), highlight=False, soft_wrap=True)

    def _line(self) -> str:
        p = self._progress
        return (
            f"step {p.step}/{self._options.steps}: sessions {p.count('sessions')}, "
            f"groups scored {p.count('groups', 'scored', 'trained', 'skipped')}, versions {self._versions()}, "
            f"serving {p.status.get('live')}, true reward {p.of_step()}"
        )

    def _versions(self) -> int:
        return sum(len(names) for names in self._progress.status.get("versions", {}).values()) - 1

    @contextmanager
    def _shown(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, get_renderable=self._table, refresh_per_second=4):
            yield

    def _table(self) -> Table:
        p = self._progress
        table = Table(title=f"{self._options.task}: step {p.step} of {self._options.steps} · {p.doing}")
        for column in ("sessions recorded", "groups scored", "runs trained", "serving", "true reward"):
            table.add_column(column, justify="right")
        table.add_row(
            str(p.count("sessions")),
            str(p.count("groups", "scored", "trained", "skipped")),
            str(self._versions()) if p.status else "-",
            p.status.get("live") or "-",
            p.of_step(),
        )
        for step, value in list(enumerate(curve.means(p.attempts), 1))[-6:]:
            table.add_row(f"[dim]step {step}[/dim]", "", "", "", f"[dim]{value:.3f}[/dim]")
        return table

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def finish(self, minutes: float, data: Path) -> int:
        """Show the curve and what it proves, and say where everything lies."""
        attempts = self._progress.attempts
        found = curve.verdict([attempt.reward for attempt in attempts])
        title = f"{self._options.task}: {len(attempts)} sessions, {minutes:.1f} minutes"
        curve.save_png(attempts, title, data / "curve.png")
        curve.save_json(attempts, found, minutes, data / "demo.json")
        print(curve.in_terminal(attempts))
        self._say(f"{title}; {counted(self._versions(), 'version')} trained, {self._progress.status['live']} serves")
        self._say(f"mean true reward: first third {found.first:.3f}, last third {found.last:.3f} (p = {found.p:.2g})")
        self._say(f"curve: {data / 'curve.png'}\ndatabase: {data / 'slipstream.db'}\nadapters: {data / 'adapters'}")
        up = "" if self._options.keep else "start ./scripts/serve, then "
        self._say(
            f"your own agent: {up}base_url={self._services.url}/v1, model=agent, and the headers X-Session-Id and "
            f"X-Scenario-Id (README)"
        )
        if found.learned:
            self._say("LEARNED: the last third of the sessions is better than the first, and not by chance")
        else:
            self._say(f"NOT SHOWN TO LEARN: the last third must lie above the first with p < {curve.SIGNIFICANCE}")
        return 0 if found.learned else 1


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt
