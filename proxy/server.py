"""The server of the proxy's process: how it begins to listen, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from collections.abc import Callable
from http import HTTPStatus
from types import FrameType
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy import patience
from proxy.app import App
from proxy.asgi import CLIENT
from proxy.cycle import Cycle
from proxy.errors import HeadersTooLarge, ProxyError, TooSlow
from proxy.limits import HEADER_BYTES
from proxy.patience import Patience

_HEAD_BYTES = 4 * HEADER_BYTES
"""Of a request's head as it comes: headers up to their limit, what separates them, and the target."""

_PIPELINED = 100
"""Requests of one connection that wait for the response to an earlier one."""

_YOUNG_OBJECTS = 50_000
"""So many are allocated between two looks for garbage in cycles; Python's own 700 are reached within a few calls."""


class Protocol(HttpToolsProtocol):
    """HTTP from agents.

    What is kept until more comes is bounded: a head without an end would fill the memory, and hold up every
    agent while it is put together. So is the time that a request takes to come. What comes behind a chunked body
    (trailers) is no header: nobody has checked it.
    """

    seconds = patience.SECONDS
    _patience: Patience
    _gathered = 0
    """Bytes that came since the parser last had something whole."""
    _head_came = False
    _whole = True
    """No request is coming in: the last one has come to its end."""
    _watcher: Callable[[], object] | None = None
    gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvloop's are not asyncio's
        self._patience = Patience(self.loop, self.seconds, self._late)
        self._patience.begin()

    def watch(self, act: Callable[[], object]) -> None:
        """See `proxy.asgi.Client`."""
        self._watcher = act
        self.flow.resume_reading()  # a large body may have stopped it, and the end of the connection is read, too
        if self.gone:
            act()

    def unwatch(self, act: Callable[[], object]) -> None:
        if self._watcher is act:
            self._watcher = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.end()
        super().connection_lost(exc)
        self.gone = True
        if self._watcher is not None:
            self._watcher()

    def data_received(self, data: bytes) -> None:
        self._gathered += len(data)
        super().data_received(data)
        if self._gathered > _HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HeadersTooLarge(f"the head of the request is longer than {_HEAD_BYTES} bytes"))
        if (self._gathered or not self._whole) and (self._head_came or not self._patience.waits):
            self._patience.begin()  # a head has its time as a whole, a body for each piece

    def shutdown(self) -> None:
        """The process stops: what has come whole is answered."""
        if self._body_is_awaited():
            self.transport.close()
        else:
            super().shutdown()

    def _body_is_awaited(self) -> bool:
        """The request that the app works on has not come whole, and nothing of a response has left."""
        return self._head_came and not self._whole and not self.pipeline and not self.cycle.response_started

    def _late(self) -> None:
        """The client took too long to send a request; or it was not to send, while others are answered."""
        answering = self.cycle is not None and not self.cycle.response_complete and not self._body_is_awaited()
        if answering or self.flow.read_paused:
            self._patience.begin()
        elif self._gathered or not self._whole:
            what = "body of the request stopped coming" if self._head_came else "head of the request did not come whole"
            self._refuse(TooSlow(f"the {what} for {self.seconds:g} seconds"))
        else:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._head_came = self._whole = False
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_came:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self._gathered, self._head_came = 0, True
        earlier, self.cycle = self.cycle, self._begin()
        if earlier is None or earlier.response_complete:
            self._start_asgi_task(self.cycle, self.app)
            return
        self.flow.pause_reading()
        self.pipeline.appendleft((self.cycle, self.app))
        if len(self.pipeline) > _PIPELINED:
            self.transport.close()

    def _begin(self) -> Cycle:
        """The request whose head has come."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        version = self.parser.get_http_version()
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "method": self.parser.get_method().decode("ascii"),
            "scheme": self.scheme or "http",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self.headers,
            "client": self.client,
            "server": self.server,
            "state": self.app_state.copy(),
            "extensions": {CLIENT: self},  # type: ignore[dict-item]  # not an extension of ASGI's own
        }
        return Cycle(
            self.loop,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )

    def on_body(self, body: bytes) -> None:
        self._gathered = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._gathered, self._head_came, self._whole = 0, False, True
        self._patience.end()
        super().on_message_complete()

    def _refuse(self, error: ProxyError) -> None:
        """Close the connection; say why where no response is under way."""
        idle = self.cycle is None or self.cycle.response_complete
        if self._body_is_awaited() or (idle and not self._head_came):
            status = HTTPStatus(error.status)
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(error.body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + error.body)
        self.transport.close()


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
                http=Protocol,
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                # vLLM's own headers of these names are passed on.
                server_header=False,
                proxy_headers=False,  # agents are known by their keys
                date_header=False,
                timeout_graceful_shutdown=settings.drain,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        # A call takes two files, and the usual limit of 1024 is for programs that use `select`.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is here now stays; calls leave little that their reference counts do not free.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self._app.draining = True
        super().handle_exit(sig, frame)
