"""The server of the proxy's process: how it begins to listen, and how it ends."""

from __future__ import annotations

import os
from types import FrameType

import uvicorn

from proxy.app import App


class Server(uvicorn.Server):
    """Listens for ``app``. SIGTERM or SIGINT drains it.

    No new connection is taken; calls under way go on to their end, or until ``drain`` seconds have passed: what is left
    then is cut off and marked `interrupted`. A second signal ends the process at once, as safely as `kill -9` does.
    """

    def __init__(self, app: App) -> None:
        settings = app.settings
        self._app = app
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                # vLLM's own headers of these names are passed on.
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=settings.drain,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self._app.draining = True
        super().handle_exit(sig, frame)
