"""Agents' calls on their way to one vLLM server: HTTP/1.1 over kept connections, bytes in and bytes out.

A general HTTP client costs a call more than everything else that the proxy does with it (`./scripts/bench/proxy`;
docs/architecture.md, "Fast"). This one knows what a call needs: the parser is httptools (llhttp), everything else of a
request and a response passes as it is, headers of any bytes among it. What is not an agent's call uses aiohttp.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import time
from collections.abc import Sequence

import httptools
from yarl import URL

# vLLM closes a connection that was idle for 5 s; one that we close earlier is never found closed.
KEEPALIVE_SECONDS = 4.0
_CONNECT_SECONDS = 5.0
_MAX_HEAD = 2**20
_HIGH_WATER = 2**20
"""Bytes of a response that wait for a slow client; above it vLLM is read no further."""

Field = tuple[bytes, bytes]


class Unanswered(ConnectionError):
    """No byte of a response came."""


class Broken(ConnectionError):
    """The response broke off, or is no HTTP."""


class Response:
    """A response whose head has come. Read it to its end, or `close` it."""

    __slots__ = ("_connection", "_error", "_pieces", "_waiting", "_waits", "complete", "headers", "length", "status")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._waits: asyncio.Future[None] | None = None
        self._error: Broken | None = None
        self.status = 0
        self.headers: list[Field] = []
        """As they came; names in lower case."""
        self.length: int | None = None
        """What Content-Length says."""
        self.complete = False
        """Its last byte has come."""

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name."""
        return next((value for key, value in self.headers if key == name), None)

    async def read(self) -> bytes:
        """All bytes of the body that have come since the last call, at least one; empty at the end.

        Raises `Broken` when the body breaks off, behind all its bytes.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            self._waits = self._connection.loop.create_future()
            try:
                await self._waits
            finally:
                self._waits = None
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        if self._waiting > _HIGH_WATER and not self.complete:
            self._connection.resume()
        self._waiting = 0
        return data

    def close(self) -> None:
        """Done with it: where its end has not come, the connection is closed, and vLLM sees that nobody waits."""
        if not self.complete:
            self._connection.abort()

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting > _HIGH_WATER:
            self._connection.pause()
        self._wake()

    def end(self, error: Broken | None = None) -> None:
        self.complete = error is None
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)


class Connection(asyncio.Protocol):
    """One connection: one call at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Connections) -> None:
        self.loop = loop
        self._pool = pool
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._asked: asyncio.Future[Response] | None = None
        """Set until the head has come."""
        self._response: Response | None = None
        """The one that is coming."""
        self._head = 0
        self._chunked = False
        self.idle_since = 0.0
        self.lost = False

    async def ask(self, data: Sequence[bytes]) -> Response:
        """Send a request; its response when the head has come. Raises `Unanswered`, `Broken`."""
        self._asked = self.loop.create_future()
        self._head = 0
        self._transport.writelines(data)
        try:
            return await self._asked
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        self.lost = True
        self._transport.abort()

    def pause(self) -> None:
        if not self.lost:
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self.lost:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are not asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._pool.forget(self)
        response, asked = self._response, self._asked
        self._response = self._asked = None
        if asked is not None:
            if not asked.done():
                came = response is not None or self._head
                text = "the connection was closed in the head of the response" if came else "it closed the connection"
                asked.set_exception((Broken if came else Unanswered)(str(exc or text)))
        elif response is not None:
            # Without a length and without chunks, the end of the connection is the end of the body.
            bounded = response.length is not None or self._chunked
            if bounded or exc is not None:
                response.end(Broken(str(exc or "the connection was closed before the end of the body")))
            else:
                response.end()

    def data_received(self, data: bytes) -> None:
        if self._asked is not None:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"it sent what is no HTTP: {error}")
        else:
            if self._asked is not None and self._head > _MAX_HEAD:
                self._fail("the head of the response is too long")

    def _fail(self, text: str) -> None:
        response, asked = self._response, self._asked
        self._response = self._asked = None
        self.abort()
        if asked is not None and not asked.done():
            asked.set_exception(Broken(text))
        elif response is not None:
            response.end(Broken(text))

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        self._chunked = False
        if self._asked is not None:
            self._response = Response(self)
        else:
            self.abort()  # bytes that nobody asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is None or self._asked is None:
            return  # a trailer is no header
        name = name.lower()
        self._response.headers.append((name, value))
        if name == b"content-length":
            self._response.length = int(value)
        elif name == b"transfer-encoding":
            self._chunked = True

    def on_headers_complete(self) -> None:
        if self._response is None:
            return
        self._response.status = self._parser.get_status_code()
        if self._response.status >= 200 and self._asked is not None:
            if not self._asked.done():
                self._asked.set_result(self._response)
            self._asked = None

    def on_body(self, data: bytes) -> None:
        if self._response is not None:
            self._response.add(data)

    def on_message_complete(self) -> None:
        response, self._response = self._response, None
        if response is None or response.status < 200:
            return  # the one that was asked for is still to come
        response.end()
        # A response that came before its request was sent whole leaves the rest of that in the way.
        sent = not self._transport.get_write_buffer_size()
        if sent and self._parser.should_keep_alive() and not self.lost:
            self.resume()  # what of the body is still to be read is here
            self.idle_since = time.monotonic()
            self._pool.keep(self)
        else:
            self.abort()


class Connections:
    """The connections to one server, and the requests to it."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """``api_key`` is vLLM's own; raises ValueError for a ``url`` without a host."""
        parsed = URL(url)
        if parsed.host is None or parsed.port is None:
            raise ValueError(f"{url} has no host")
        self._host, self._port = parsed.host, parsed.port
        self._tls = ssl.create_default_context() if parsed.scheme == "https" else None
        self._path = parsed.raw_path.rstrip("/").encode()
        own = [(b"host", parsed.raw_authority.rpartition("@")[2].encode())]
        if api_key is not None:
            own.append((b"authorization", b"Bearer " + api_key.encode()))
        elif parsed.user is not None:
            pair = f"{parsed.user}:{parsed.password or ''}".encode()
            own.append((b"authorization", b"Basic " + base64.b64encode(pair)))
        self._own = b"".join(b"%b: %b\r\n" % field for field in own)
        self._idle: list[Connection] = []
        """The one used last at the end: what is not needed grows old and is closed."""

    async def ask(self, method: str, target: bytes, fields: Sequence[Field], body: bytes) -> Response:
        """Send a request; its response when the head has come.

        One that a kept connection does not answer (vLLM was just closing it) goes over a new connection.
        Raises `Unanswered` when no byte of a response came, `Broken` when its head broke off, OSError when the server
        cannot be reached.
        """
        head = b"%b %b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            method.encode(),
            self._path,
            target,
            self._own,
            b"".join([b"%b: %b\r\n" % field for field in fields]),
            len(body),
        )
        data = (head, body) if body else (head,)
        kept = self._take()
        if kept is not None:
            with contextlib.suppress(Unanswered):
                return await kept.ask(data)
        return await (await self._connect()).ask(data)

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and time.monotonic() - connection.idle_since < KEEPALIVE_SECONDS:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise TimeoutError(f"no connection to {self._host}:{self._port} within {_CONNECT_SECONDS:.0f} s") from None
        return connection

    def keep(self, connection: Connection) -> None:
        """It is free for the next call."""
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def close_old(self) -> None:
        """Close what has not been used for a while; call it now and then."""
        oldest = time.monotonic() - KEEPALIVE_SECONDS
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).abort()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()
