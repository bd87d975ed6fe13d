"""The proxy as tests run it: in a thread of this process, or as the process that users run."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import orjson

from proxy.app import App
from proxy.server import Protocol
from proxy.settings import ProxySettings, SessionSettings
from storage import calls, sessions
from storage.database import Database
from storage.types import DEFAULT_OWNER, Call, Identity, Session
from tests.fake_vllm import tokens
from tests.fake_vllm.engine import BASE_WEIGHTS, logprobs
from tests.fake_vllm.server import Serving

PROJECT = Path(__file__).parents[2]
ADMIN_KEY = "the-admin-key"
CHAT = "/v1/chat/completions"
DIALECTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"max_tokens": 200, "messages": [{"role": "user", "content": "hello"}]},
}
"""The recorded dialects: by path what a small request holds beside its model."""
_JSON = {"content-type": "application/json"}

STATED: dict[str, Any] = {
    "temperature": 1,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
}
"""Sampling parameters that leave nothing to vLLM's defaults, and the policy's distribution as it is."""

T = TypeVar("T")


def until(find: Callable[[], T | None], seconds: float = 60.0) -> T:
    """Ask ``find`` until it gives something true; what it gave last is in the failure."""
    deadline = time.monotonic() + seconds
    while True:
        found = find()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {seconds} s in vain; the last answer was {found!r}"
        time.sleep(0.01)


class Recorded:
    """What a data folder holds, read past the proxy."""

    def __init__(self, folder: Path) -> None:
        self.db = Database(folder)

    def session(self, session_id: str, episode: int | None = None) -> Session | None:
        return sessions.find(self.db, Identity(DEFAULT_OWNER, session_id), episode)

    def closed(self, session_id: str) -> Session | None:
        """The session once it is no longer open."""
        found = self.session(session_id)
        return found if found and found.state != "open" else None

    def calls(self, session_id: str, number: int = 1) -> list[Call]:
        """The session's calls, once there are ``number`` of them."""

        def find() -> list[Call]:
            session = self.session(session_id)
            found = calls.of_session(self.db, session.key) if session else []
            return found if len(found) >= number else []

        found = until(find)
        assert len(found) == number
        return found

    def row(self, seq: int) -> dict[str, Any]:
        """A call's row, with its bodies decoded."""
        row = self.db.first("SELECT * FROM calls WHERE seq = ?", (seq,))
        assert row is not None
        return {**dict(row), "request": calls.body(self.db, seq), "response": calls.body(self.db, seq, "response")}


class RunningProxy:
    """The real `App` under uvicorn in a thread, in front of ``upstream``; ``settings`` are those of `ProxySettings`."""

    def __init__(
        self,
        data: Path,
        upstream: tuple[str, ...],
        secret: str | None,
        *,
        wrap: Callable[[App], Any] = lambda app: app,
        protocol: type[Protocol] = Protocol,
        **settings: Any,
    ) -> None:
        """``wrap`` puts something between server and proxy; ``idle`` stands for ``session.idle``."""
        data.mkdir(parents=True, exist_ok=True)
        if secret is not None:
            (data / "plugin.secret").write_text(secret + "\n")
        self.data = data
        session = SessionSettings(idle=settings.pop("idle", 300.0))
        # Every one is given, whatever stands in the environment or in a slipstream.toml.
        defaults = {"alias": ("agent",), "model": None, "admin_key": ADMIN_KEY, "policy": "policy"}
        given = {"data": data, "upstream": upstream, "session": session, "upstream_api_key": None}
        self.settings = ProxySettings.model_validate({**defaults, **given, **settings})
        self.app = App(self.settings, step_seconds=0.1)
        self.serving = Serving(wrap(self.app), protocol)
        self.serving.start()
        self.client = httpx.Client(base_url=self.serving.url, timeout=60, headers=_JSON)

    @property
    def url(self) -> str:
        return self.serving.url

    def stop(self) -> None:
        self.client.close()
        self.serving.stop()

    def chat(self, text: str = "hello", model: str = "agent", **options: Any) -> httpx.Response:
        """One call; ``headers`` beside what goes into the body."""
        headers = options.pop("headers", {})
        return self.client.post(CHAT, content=request(text, model, **options), headers=headers)

    def admin(self, path: str, method: str = "GET", **options: Any) -> Any:
        """The admin API's JSON."""
        return self.answer(path, method, **options).json()

    def answer(self, path: str, method: str = "GET", **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        return self.client.request(method, f"/admin/{path}", headers=headers, **options)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin("status")
        return found


class ProxyProcess:
    """`slipstream proxy` as a process of its own, in a group of its own, to be killed."""

    def __init__(self, data: Path, upstream: str, secret: str, **variables: str) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = data.parent / f"proxy-{port}.log"
        self._log = self.log.open("wb")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
        settings = {
            "SLIPSTREAM_DATA": str(data),
            "SLIPSTREAM_PORT": str(port),
            "SLIPSTREAM_UPSTREAM": upstream,
            "SLIPSTREAM_PLUGIN_SECRET": secret,
            "SLIPSTREAM_ADMIN_KEY": ADMIN_KEY,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scripts.cli", "proxy"],
            cwd=PROJECT,
            env={**inherited, **settings, **variables},
            stdout=self._log,
            stderr=self._log,
            process_group=0,
        )
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=_JSON)

    def wait(self) -> None:
        """Until it answers."""
        until(self._answers, 120)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def limit_files(self, size: int) -> None:
        """From now on no file of both processes grows beyond ``size`` bytes: a full disk, without filling one."""
        for pid in (self.process.pid, self.ingestion()):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def ingestion(self) -> int:
        """The id of its child, once there is one."""
        (pid,) = until(lambda: children(self.process.pid))
        return pid

    def kill(self) -> None:
        """As the kernel does when memory runs out. Once more does no harm."""
        self.process.kill()
        self.process.wait()
        self.client.close()
        self._log.close()


def children(parent: int) -> set[int]:
    """The ids of a process's children, of those that are dead and not waited for, too."""
    return {int(pid) for path in Path(f"/proc/{parent}/task").glob("*/children") for pid in path.read_text().split()}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def request(text: str = "hello", model: str = "agent", **options: Any) -> bytes:
    """A chat request's body."""
    messages = options.pop("messages", [{"role": "user", "content": text}])
    return orjson.dumps({"model": model, "messages": messages, **options})


def tags(session: str | bytes, fault: str = "none", scenario: str | None = "c", **more: str) -> dict[str, Any]:
    """The headers of a call of ``session``; ``more`` by name, with ``_`` for ``-``."""
    found: dict[str, Any] = {"x-session-id": session, "x-fake-fault": fault}
    if scenario is not None:
        found["x-scenario-id"] = scenario
    return {**found, **{name.replace("_", "-"): value for name, value in more.items()}}


def answerer(proxy: RunningProxy, model: str = "agent", **headers: str) -> tuple[str, str]:
    """Who answers a call: by the header, and by what the fake's model says; of an error status and text."""
    answer = proxy.chat(model=model, headers=headers)
    if answer.status_code != 200:
        return str(answer.status_code), answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return answer.headers["x-policy-version"], text.partition(" ")[0]


def assert_exact(call: Call, messages: list[dict[str, Any]], answers: list[str]) -> None:
    """The ids and logprobs are those of the fake's model, computed here again."""
    prompt = tokens.prompt(messages)
    assert list(call.prompt_ids) == prompt
    assert len(call.choices) == len(answers)
    for choice, text in zip(call.choices, answers, strict=True):
        ids = [*tokens.encode(text), tokens.CLOSE]
        assert list(choice.ids) == ids
        assert list(choice.logprobs) == logprobs(BASE_WEIGHTS, [*prompt, *ids])[len(prompt) :]
        assert choice.finish == "stop"
