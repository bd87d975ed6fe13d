"""A Slipstream service as a user starts it, and what the end-to-end tests ask of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pysqlite3
from openai import OpenAI

PROJECT = Path(__file__).parent.parent.parent
_START_SECONDS = 900.0
_WAIT_SECONDS = 300.0


def free_ports() -> int:
    """The first of three ports in a row that nobody uses: proxy, vLLM, judge."""
    for port in range(18400, 19400, 3):
        try:
            for offset in range(3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        return port
    raise RuntimeError("no three free ports in a row")


@dataclass
class Service:
    """`slipstream serve` in a process of its own."""

    data: Path
    port: int
    process: subprocess.Popen[bytes] = field(repr=False)
    judge: subprocess.Popen[bytes] = field(repr=False)

    @classmethod
    def start(cls, folder: Path, model: Path, judge: Path) -> Service:
        """Start everything; ``judge`` is a program that takes ``--port``."""
        port = free_ports()
        data = folder / "data"
        env = {
            **os.environ,
            "SLIPSTREAM_DATA": str(data),
            "SLIPSTREAM_PORT": str(port),
            "SLIPSTREAM_MODEL": str(model),
            "SLIPSTREAM_JUDGE_BASE_URL": f"http://127.0.0.1:{port + 2}/v1",
            "SLIPSTREAM_JUDGE_MODEL": "test-judge",
            # vLLM makes tool calls of what the model says only when it is told how to read it.
            "SLIPSTREAM_VLLM_ARGS": "--enable-auto-tool-choice --tool-call-parser hermes",
            # Runs start when the tests ask for them.
            "SLIPSTREAM_TRAINER__GROUPS": "1000",
        }
        judging = subprocess.Popen([sys.executable, str(judge), "--port", str(port + 2)])
        with (folder / "serve.log").open("wb") as log:
            command = [sys.executable, "-m", "scripts.cli", "serve"]
            process = subprocess.Popen(command, env=env, cwd=PROJECT, stdout=log, stderr=subprocess.STDOUT)
        service = cls(data, port, process, judging)
        service._wait(folder / "serve.log")
        return service

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"serve ended:\n{log.read_text()}"
            try:
                if httpx.get(f"{self.url}/ready", timeout=_WAIT_SECONDS).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"not ready in time:\n{log.read_text()}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(_WAIT_SECONDS)
        self.judge.kill()
        self.judge.wait()
        return code

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def vllm_url(self) -> str:
        return f"http://127.0.0.1:{self.port + 1}"

    def agent(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none")

    def admin(self, method: str, path: str, **arguments: Any) -> Any:
        key = (self.data / "admin.key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        response = httpx.request(method, f"{self.url}/admin{path}", headers=headers, timeout=600, **arguments)
        assert response.status_code in (200, 202), response.text
        return response.json()

    def train(self, **body: Any) -> dict[str, Any]:
        """Ask for a run, and wait until it ended and its version answers."""
        run: dict[str, Any] = self.admin("POST", "/train", json={"wait": True, **body})
        return run

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """What stands in the database."""
        connection = pysqlite3.connect(f"file:{self.data / 'slipstream.db'}?mode=ro", uri=True)
        connection.row_factory = pysqlite3.Row
        try:
            return [dict(row) for row in connection.execute(sql, parameters)]
        finally:
            connection.close()

    def wait_recorded(self, sessions: list[str]) -> None:
        """Until the sessions are in the database, and closed."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            closed = {row["session_id"] for row in self.rows("SELECT session_id FROM sessions WHERE state = 'closed'")}
            if closed.issuperset(sessions):
                return
            time.sleep(0.1)
        raise AssertionError(f"not closed: {set(sessions) - closed}")
