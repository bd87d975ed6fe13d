"""The short training through the wire that the end-to-end tests share: agents of one word, and a worker that dies."""

from __future__ import annotations

import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.e2e.judge import REWARDED, prompt
from tests.e2e.service import Service

ROUNDS = 10
ATTEMPTS = 8


def play(service: Service, choice: str, *, turns: int = 1, evaluate: bool = False) -> str:
    """One session of an agent that knows the openai SDK and nothing else; returns its id."""
    session = f"{choice}-{uuid.uuid4()}"
    messages: list[Any] = []
    with service.agent() as client:
        for turn in range(turns):
            messages.append({"role": "user", "content": prompt(choice)})
            headers = {"X-Session-Id": session, "X-Scenario-Id": f"{choice} {turns}"}
            if evaluate:
                headers["X-Split"] = "eval"
            if turn == turns - 1:
                headers["X-Session-End"] = "true"
            answer = client.chat.completions.create(
                model="agent", messages=messages, max_tokens=4, temperature=1, extra_headers=headers
            )
            messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
    return session


def play_round(service: Service, *, turns: int = 1) -> list[str]:
    with ThreadPoolExecutor(16) as pool:
        jobs = [choice for _ in range(ATTEMPTS) for choice in REWARDED]
        sessions = list(pool.map(lambda choice: play(service, choice, turns=turns), jobs))
    service.wait_recorded(sessions)
    return sessions


def train(service: Service) -> list[dict[str, Any]]:
    """A short training; returns its runs.

    In one of them the update worker is killed: serving goes on meanwhile, and the next run takes its groups.
    """
    runs: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        play_round(service)
        if number == 1:
            runs.append(run_with_killed_worker(service))
        runs.append(service.train())
    return runs


def run_with_killed_worker(service: Service) -> dict[str, Any]:
    """Ask for a run and kill the worker in the middle; an agent is answered while it runs, and after the kill."""
    worker = update_worker(service)

    def kill() -> None:
        while not service.rows("SELECT 1 FROM runs WHERE state = 'running'"):
            time.sleep(0.05)
        play(service, "up or down?")
        os.kill(worker, signal.SIGKILL)
        play(service, "up or down?")

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        run = service.train()
        killing.result()
    return run


def update_worker(service: Service) -> int:
    """The process of this service, and of no other one, that holds the base model for training."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
                variables = (folder / "environ").read_bytes()
            except OSError:
                continue
            if b"trainer.update" in command and f"SLIPSTREAM_DATA={service.data}".encode() in variables.split(b"\0"):
                return int(folder.name)
    raise AssertionError("there is no update worker")
