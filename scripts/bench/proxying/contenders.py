"""Who is measured: how each is started in front of the upstream, and when its work on the calls is done."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.proxying import peers, processes
from scripts.bench.proxying.records import Records
from scripts.bench.proxying.replies import MODEL

SECRET = "the-secret-of-bench"  # noqa: S105 - guards nothing

_START_SECONDS = 120.0
_MODULE = "scripts.bench.proxying"


class Upstream:
    """The upstream as a process."""

    def __init__(self, cores: frozenset[int], logs: Path) -> None:
        self.process = processes.start([sys.executable, "-m", f"{_MODULE}.upstream"], cores, logs / "upstream.log")
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Contender:
    """A server under measurement; without a process of its own it is the upstream itself (`direct`)."""

    name = "direct"

    def __init__(self, upstream: Upstream) -> None:
        self.port = upstream.port
        self.process = upstream.process

    def drain(self) -> float:
        """Wait until nothing is left to do for the calls that were answered; returns the seconds that it took."""
        return 0.0

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.process.pid)

    def rss_mb(self) -> float:
        return processes.rss_mb(self.process.pid)


class Server(Contender, ABC):
    """A contender that is a process."""

    health = "/health"

    def __init__(self, upstream: Upstream, cores: frozenset[int], folder: Path) -> None:
        self.port = _free_port()
        self.folder = folder / self.name
        self.folder.mkdir()
        self._log = self.folder / "log"
        self.process = processes.start(self.arguments(upstream.url), cores, self._log, self.environment(upstream.url))

    @abstractmethod
    def arguments(self, upstream: str) -> list[str]:
        """The command that starts it."""

    def environment(self, upstream: str) -> dict[str, str]:  # noqa: ARG002 - for those that need it
        return dict(os.environ)

    def wait(self) -> None:
        """Until it answers. Raises RuntimeError when it does not."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.health}", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        end = self._log.read_text()[-2000:]
        raise RuntimeError(f"{self.name} does not serve; its log ends with:\n{end}")


class Bare(Server):
    name = "bare"

    def arguments(self, upstream: str) -> list[str]:
        return [sys.executable, "-m", f"{_MODULE}.bare", upstream, str(self.port)]


class Slipstream(Server):
    """The whole proxy as a user runs it, recording into a data folder of its own."""

    name = "slipstream"
    health = "/ready"

    def __init__(self, upstream: Upstream, cores: frozenset[int], folder: Path) -> None:
        super().__init__(upstream, cores, folder)
        self.records: Records | None = None
        self.expected = 0
        """Calls that were accepted, and so must become rows."""

    def arguments(self, upstream: str) -> list[str]:  # noqa: ARG002
        return [sys.executable, "-m", "scripts.cli", "proxy"]

    def environment(self, upstream: str) -> dict[str, str]:
        own = {
            "SLIPSTREAM_DATA": str(self.folder / "data"),
            "SLIPSTREAM_UPSTREAM": upstream,
            "SLIPSTREAM_PORT": str(self.port),
            "SLIPSTREAM_PLUGIN_SECRET": SECRET,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
        return kept | own

    def wait(self) -> None:
        super().wait()
        self.records = Records(self.folder / "data")

    def drain(self) -> float:
        assert self.records is not None
        began = time.perf_counter()
        self.records.wait_for(self.expected)
        return time.perf_counter() - began


class VllmRouter(Server):
    """The Rust router, with its request logs off."""

    name = "vllm-router"

    def arguments(self, upstream: str) -> list[str]:
        program = peers.environment(self.name) / "vllm-router"
        return [
            str(program), "--worker-urls", upstream, "--policy", "round_robin", "--port", str(self.port),
            "--prometheus-port", str(_free_port()), "--log-level", "error",
        ]  # fmt: skip


class LiteLlm(Server):
    """LiteLLM's proxy: one worker, as its documentation recommends for one core, and its logging off."""

    name = "litellm"
    health = "/health/liveliness"

    def arguments(self, upstream: str) -> list[str]:
        parameters = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"}
        settings = {
            "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
            "litellm_settings": {"set_verbose": False, "request_timeout": 600, "num_retries": 0, "telemetry": False},
            "general_settings": {"disable_spend_logs": True, "disable_error_logs": True},
        }
        config = self.folder / "config.yaml"
        config.write_text(json.dumps(settings))  # YAML reads JSON
        program = peers.environment(self.name) / "litellm"
        return [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(self.port),
                "--num_workers", "1", "--telemetry", "False"]  # fmt: skip

    def environment(self, upstream: str) -> dict[str, str]:  # noqa: ARG002
        return dict(os.environ) | {
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # it need not check keys
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is fetched from the network at start
        }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def stop_all(contenders: Sequence[Contender], upstream: Upstream) -> None:
    running: list[subprocess.Popen[bytes]] = [one.process for one in contenders]
    for process in [*running, upstream.process]:
        processes.stop(process)
