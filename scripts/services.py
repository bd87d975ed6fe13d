"""vLLM, proxy and trainer as one service: started in order, kept running, stopped together."""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from proxy import lock, secrets
from proxy.errors import CannotServe
from proxy.keys import check_bind
from proxy.settings import ProxySettings
from scripts import small_model
from scripts.supervisor import STOP_SECONDS, Part, Supervisor
from scripts.vllm_server import VllmServer
from storage.errors import StorageError
from storage.folders import make_private, require_usable
from trainer.settings import TrainerSettings

PROJECT = Path(__file__).parent.parent
MODELS = PROJECT / "models"

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_START_SECONDS = 1800.0
"""A large model takes its time to load, and a hub's to arrive."""

Say = Callable[[str], None]


class CannotStart(Exception):
    """A part did not come up; the text says which, why, and what to do."""


class Services:
    """What `slipstream serve` runs, with the settings of this process's surroundings."""

    def __init__(self, model: str | None, say: Say) -> None:
        self.proxy_settings = ProxySettings()
        self.trainer_settings = TrainerSettings()
        self._variables: dict[str, str] = {}
        self._say = say
        self._supervisor = Supervisor(say)
        self._vllm: Part | None = None
        host = self.proxy_settings.host
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.proxy_settings.port}"
        self._model = model or self.proxy_settings.model
        self.admin_key = ""

    def check(self) -> None:
        """Find out what would keep the parts from starting, before anything is made. Raises `CannotStart`."""
        settings = self.proxy_settings
        require_free_port(settings.host, settings.port)
        try:
            require_usable(settings.data)
            lock.take(settings.data).close()
            check_bind(settings)
        except (CannotServe, StorageError) as error:
            raise CannotStart(str(error)) from error
        if not settings.upstream:
            require_free_port("127.0.0.1", settings.port + 1)
            if self._model is not None:
                find_model(self._model, self._say, self.log("model"))

    def start(self) -> None:
        """Start everything and wait until agents can be served. Raises `CannotStart`."""
        self.check()
        settings = self.proxy_settings
        # Made here, to be said on the terminal: the proxy's own output is a log file, which no key belongs into.
        try:
            self.admin_key = secrets.admin_key(settings, self._say, shown=True)
            secrets.plugin_secret(settings.data)
        except CannotServe as error:
            raise CannotStart(str(error)) from error
        if not settings.upstream:
            self._start_vllm()
        for name in ("proxy", "trainer"):
            part = self._part(name, [sys.executable, "-m", "scripts.cli", name])
            part.patience = settings.drain + STOP_SECONDS
            self._supervisor.start(part)
        self._wait_until_ready()

    def stop(self) -> bool:
        """Stop what was started; whether anything was."""
        started = bool(self._supervisor.parts)
        self._supervisor.stop()
        return started

    def run_beside(self, name: str, command: list[str]) -> None:
        """Keep a further program running with the others."""
        self._supervisor.start(self._part(name, command))

    def log(self, name: str) -> Path:
        return self.proxy_settings.logs / f"{name}.log"

    def _start_vllm(self) -> None:
        model = find_model(self._model, self._say, self.log("model"))
        name = Path(model).name if Path(model).is_dir() else model
        server = VllmServer(
            model=model,
            name=name,
            port=self.proxy_settings.port + 1,
            settings=self.proxy_settings,
            update=self.trainer_settings.train,
            python=os.environ.get("SLIPSTREAM_VLLM_PYTHON", sys.executable),
            extra=tuple(shlex.split(os.environ.get("SLIPSTREAM_VLLM_ARGS", ""))),
        )
        self._variables |= {"SLIPSTREAM_UPSTREAM": server.url, "SLIPSTREAM_MODEL": name}
        self._vllm = Part("vllm", server.command(), server.environment(), self.log("vllm"))
        self._say(f"starting vLLM with {name} at {server.url} (about a minute; log: {self._vllm.log})")
        self._supervisor.start(self._vllm)

    def _part(self, name: str, command: list[str]) -> Part:
        return Part(name, command, {**os.environ, **self._variables}, self.log(name))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        answer = "the proxy does not answer yet"
        while time.monotonic() < deadline:
            if self._vllm is not None and self._vllm.restarts:
                raise CannotStart(f"vLLM does not start. The end of {self._vllm.log}:\n{self._vllm.tail()}")
            try:
                response = httpx.get(f"{self.url}/ready", timeout=5)
                if response.status_code == 200:
                    return
                state = response.json()
                answer = "; ".join(state.get("problems", []))
                # A vLLM of ours takes its time. One that runs already is as it is, but for versions still to be loaded.
                if self._vllm is None and not state["reachable"]:
                    raise CannotStart(answer)
            except httpx.HTTPError:
                self._require_alive("proxy")
            self._require_alive("trainer")
            time.sleep(0.5)
        raise CannotStart(f"not ready after {_START_SECONDS:.0f} s: {answer}")

    def _require_alive(self, name: str) -> None:
        for part in self._supervisor.parts:
            if part.name == name and part.restarts > 1:
                raise CannotStart(f"the {name} does not start. The end of {part.log}:\n{part.tail()}")


def find_model(model: str | None, say: Say, log: Path) -> str:
    """A folder or a hub's name that vLLM can load; None: the small model, made at its first use.

    Raises `CannotStart` for a folder that does not exist.
    """
    if model is None:
        folder = MODELS / small_model.NAME
        if not folder.is_dir():
            say(f"preparing {small_model.NAME} (half a minute, once; log: {log})")
            make_private(log.parent)
            # A process of its own: the libraries that it takes say more than a terminal should show.
            with log.open("ab") as output:
                command = [sys.executable, "-m", "scripts.small_model", str(folder)]
                if subprocess.run(command, stdout=output, stderr=output, cwd=PROJECT, check=False).returncode:
                    raise CannotStart(f"{small_model.NAME} could not be prepared. The log: {log}")
        return str(folder)
    path = Path(model).expanduser()
    if model and path.is_dir():
        if not (path / "config.json").is_file():
            raise CannotStart(f"{path} holds no config.json: it is not a Hugging Face model folder")
        return str(path.absolute())
    if not _HUB_NAME.fullmatch(model) or model.startswith("."):
        raise CannotStart(f"there is no model {model!r}: give a folder that exists, or a hub's name such as org/model")
    return model


def require_free_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError, UnicodeError) as error:
            problem = error.strerror if isinstance(error, OSError) else error
            advice = "stop what listens there, or choose another with SLIPSTREAM_PORT (vLLM gets the next one)"
            if isinstance(error, socket.gaierror | UnicodeError) or getattr(error, "errno", 0) == errno.EADDRNOTAVAIL:
                advice = (
                    "listen at an address of this machine (SLIPSTREAM_HOST): 127.0.0.1, or 0.0.0.0 for all that it has"
                )
            raise CannotStart(f"port {port} on {host} cannot be used ({problem}): {advice}") from error
