"""A request on a connection and the response to it: uvicorn's cycle, with the writing done for less."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGISendEvent

_CONTROLS = bytes(code for code in (*range(32), 127) if code != ord("\t"))
"""What no header may hold."""
_LAST_CHUNK = b"0\r\n\r\n"


class Cycle(RequestResponseCycle):
    """The head of a response leaves in one write with what is there of its body, and is checked in one step.

    Names of headers come from a parser or from this program, in lower case.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(**options)
        self._loop = loop
        self._head = b""
        """Leaves with the first bytes of the body, or when the event loop has done what it is doing."""

    async def run_asgi(self, app: ASGI3Application) -> None:
        async def flushed(*arguments: Any) -> None:
            try:
                await app(*arguments)
            finally:
                self._flush()  # a response without an end is cut off behind its head

        await super().run_asgi(flushed)

    async def send(self, message: ASGISendEvent) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.body" and self.response_started and not self.response_complete:
            self._continue(message["body"], more=message.get("more_body", False))
        elif message["type"] == "http.response.start" and not self.response_started:
            self._start(message["status"], list(message.get("headers", ())))
        else:
            raise RuntimeError(f"{message['type']} cannot come here")

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        self.chunked_encoding = bodied = self.scope["method"] != "HEAD" and status not in (204, 304)
        closes = False
        for name, value in headers:
            if name == b"content-length":
                self.chunked_encoding = False
                self.expected_content_length = int(value) if bodied else 0
            elif name == b"connection":
                closes = closes or b"close" in [token.strip() for token in value.lower().split(b",")]
        if self.chunked_encoding:
            headers.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive and not closes:
            headers.append((b"connection", b"close"))
        self.keep_alive = self.keep_alive and not closes
        lines = [b"%b: %b\r\n" % field for field in (*self.default_headers, *headers)]
        head = b"".join(lines)
        if len(head.translate(None, _CONTROLS)) != len(head) - len(b"\r\n") * len(lines):
            raise RuntimeError(f"a header holds what no header may hold: {head!r}")
        self._head = b"%b%b\r\n" % (STATUS_LINE[status], head)
        self._loop.call_soon(self._flush)

    def _continue(self, body: bytes, *, more: bool) -> None:
        data = body
        if self.chunked_encoding:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                data += _LAST_CHUNK
        elif self.scope["method"] == "HEAD":
            data = b""
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("the body has not the length that its head says")
        self._write(data)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _flush(self) -> None:
        if self._head and not self.transport.is_closing():
            self._write(b"")

    def _write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self.transport.write(data)
