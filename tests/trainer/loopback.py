"""An ASGI app on a free loopback port, in a thread; and the little of vLLM that the trainer asks for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send


@contextmanager
def loopback(app: ASGIApp) -> Iterator[str]:
    """Serve ``app``; gives its address, without a slash at the end."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class FakeModels:
    """vLLM's ``/v1/models``: a status and a document that can be changed."""

    def __init__(self) -> None:
        self.status = 200
        self.document: Any = None
        self.keys: list[str | None] = []
        self.reset()

    def reset(self) -> None:
        """The base model `small` in /models/small, and an adapter of it, which comes first."""
        self.status = 200
        self.document = {
            "data": [
                {"id": "policy@1", "root": "/adapters/policy@1", "parent": "small"},
                {"id": "small", "root": "/models/small", "parent": None},
            ]
        }

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        self.keys.append(dict(scope["headers"]).get(b"authorization", b"").decode() or None)
        text = self.document if isinstance(self.document, str) else json.dumps(self.document)
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": text.encode()})
