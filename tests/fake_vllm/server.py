"""The fake as a running server, in a thread of the test's process; and any ASGI app in the same way."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.captures import unpacked
from tests.fake_vllm.app import FakeApp
from tests.fake_vllm.faults import CONNECTION, SERVER
from tests.fake_vllm.state import Received, State

_START_SECONDS = 60.0
SECRET = "the-secret-of-proxy-and-plugin"


class Protocol(HttpToolsProtocol):
    """Uvicorn's protocol; the app may reach the connection, to break it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lost = asyncio.Event()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]  # not an ASGI extension

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        super().connection_lost(exc)


class Serving:
    """An ASGI app under uvicorn in a thread, on a loopback port that the OS chooses at the first start."""

    def __init__(self, app: Any, protocol: type[asyncio.Protocol] = HttpToolsProtocol) -> None:
        self._app = app
        self._protocol = protocol
        self.port = 0
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """The connections that are open."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    @property
    def under_way(self) -> int:
        """The requests that the app works on."""
        return 0 if self._server is None else len(self._server.server_state.tasks)

    def start(self) -> None:
        """Listen; returns when requests are served. Raises RuntimeError when the app's start-up fails."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(config(self._app, self._protocol))
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the server did not start: its log says why")
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop at once: connections under way are broken off."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        self._server = self._thread = None


class FakeVllm:
    """A fake vLLM that a test can look into. A context manager; `stop` and `start` are a restart of the process."""

    def __init__(
        self,
        *,
        model: str | None = "base-model",
        secret: str | None = SECRET,
        runtime_adapters: bool = True,
        port: int = 0,
        unique_ids: bool = False,
        stores: bool = False,
        allowed_origins: tuple[str, ...] = (),
    ) -> None:
        """``port`` 0: the OS chooses, at the first start. For the next two see `State`.

        ``allowed_origins`` are those of browsers' pages, as vLLM's option has them, and in vLLM's way.
        """
        self.secret = secret
        self.state = State(model, "/models/base", unique_ids=unique_ids, stores=stores)
        self._app = FakeApp(self.state, secret, runtime_adapters=runtime_adapters)
        served = CORSMiddleware(self._app, allow_origins=allowed_origins, allow_methods=["*"], allow_headers=["*"])
        self._serving = Serving(served, Protocol)
        self._serving.port = port

    @property
    def url(self) -> str:
        return self._serving.url

    @property
    def port(self) -> int:
        return self._serving.port

    @property
    def connections(self) -> int:
        """The connections that are open at this moment."""
        return self._serving.connections

    @property
    def requests(self) -> list[Received]:
        """Everything that was asked of it, oldest first."""
        return self.state.requests

    def calls(self, path: str = "/v1/chat/completions") -> list[Received]:
        """The requests to ``path``."""
        return [request for request in self.state.requests if request.path == path]

    def answer(self, path: str, request: dict[str, Any]) -> bytes:
        """The body of the answer to a request, without a server."""
        return b"".join(self._app.answer(path, request).parts)

    def capture(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """What the plugin captures of the answer to a request, without a server."""
        captured = self._app.answer(path, request).capture
        return unpacked(captured) if captured else {}

    def fail_next(self, path: str, fault: str) -> None:
        """The next request to ``path`` meets ``fault``; for requests whose headers are not the test's."""
        self._app.next_faults[path] = fault

    @contextmanager
    def failing(self, path: str, fault: str) -> Iterator[None]:
        """Every request to ``path`` that begins meanwhile meets ``fault``."""
        self._app.lasting_faults[path] = fault
        try:
            yield
        finally:
            del self._app.lasting_faults[path]

    def step(self) -> None:
        """Let the next part go, of an answer with the fault `step`."""
        self.state.steps.release()

    def fail_after_load(self, fault: str) -> None:
        """The first look at the models after the next adapter was loaded meets ``fault``."""
        self._app.fault_after_load = fault

    def start(self) -> None:
        self._serving.start()

    def stop(self) -> None:
        self._serving.stop()

    def restart(self) -> None:
        """The process dies and comes back on its port: without the adapters and the responses that it held."""
        self.stop()
        self.state.adapters.clear()
        self.state.stored.clear()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def config(app: Any, protocol: type[asyncio.Protocol], port: int = 0) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        port=port,
        loop="uvloop",
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        headers=[(name.decode(), value.decode()) for name, value in SERVER] if protocol is Protocol else None,
        timeout_graceful_shutdown=1,
    )
