"""The path of an agent's call: a raw ASGI app that passes bytes on, and records them while they pass."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from proxy import capture
from proxy.asgi import ClientGone, Receive, Scope, Send, read_body, respond_error, wait_for_disconnect
from proxy.dialects import DIALECTS, LONGEST_FRAME, Dialect
from proxy.dialects.documents import parse
from proxy.errors import NotServing, ProxyError, UnknownVersion, UpstreamUnreachable
from proxy.recorder import Recorder, Recording
from proxy.sessions import OpenSession, SessionTable
from proxy.tags import TAG_HEADERS, Tags, read_tags
from proxy.upstreams import Upstream, Upstreams
from proxy.versions import Policy
from storage.states import CallOutcome
from storage.types import (
    BASE,
    DEFAULT_OWNER,
    CallEnd,
    CallId,
    CallStart,
    Identity,
    TaggedBy,
    VersionNumber,
    new_id,
    parse_version,
    version_name,
)

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade"}
)
_NOT_SENT = (
    _HOP_BY_HOP
    | TAG_HEADERS
    | {b"host", b"content-length", b"expect", b"authorization", b"accept-encoding", b"cookie", capture.HEADER.encode()}
)
_NOT_RETURNED = _HOP_BY_HOP | {b"content-length", capture.HEADER.encode()}

# aiohttp warns of a larger body that is given as bytes: it would be written in one piece.
_ONE_WRITE = 2**20


@dataclass(slots=True)
class _Exchange:
    """One call under way."""

    start: CallStart
    session: OpenSession
    recording: Recording
    cutter: capture.Cutter
    upstream: Upstream
    model: str | None
    """The vLLM model that answers; None: as the body says."""
    ends: bool
    dialect: Dialect
    streams: bool = False
    """The response is an event stream."""
    tail: bytes = b"\n"
    """The end of what came of it, where a frame may have begun."""
    done: bool = False
    """Its last frame came."""
    failed: bool = False
    """An error frame came."""
    status: int | None = None
    first_byte_at: float | None = None
    held: bytes = b""
    """The response's last bytes: they leave when the call's end is recorded."""
    client_left: bool = False
    ended: bool = False

    def follow(self, data: bytes) -> None:
        """Look for the frames that end a stream. They begin a line, which no text in a frame can, split anywhere."""
        text = self.tail + data
        self.failed = self.failed or any(b"\n" + frame in text for frame in self.dialect.error_frames)
        self.done = self.done or any(b"\n" + frame in text for frame in self.dialect.last_frames)
        self.tail = text[-LONGEST_FRAME:]


class Forward:
    """Serves the recorded paths. One instance for the life of the process."""

    def __init__(
        self, upstreams: Upstreams, policy: Policy, table: SessionTable, recorder: Recorder, aliases: tuple[str, ...]
    ) -> None:
        self._upstreams = upstreams
        self._policy = policy
        self._table = table
        self._recorder = recorder
        self._aliases = frozenset(aliases)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            tags = read_tags(scope["headers"])
            body = await read_body(receive)
            exchange = self._begin(DIALECTS[scope["path"]], tags, body)
        except ClientGone:
            return
        except ProxyError as error:
            await respond_error(send, error)
            return
        try:
            await self._watch(self._pass(exchange, scope, body, send), exchange, receive)
        except asyncio.CancelledError:
            self._end(exchange, CallOutcome.INTERRUPTED, "the proxy stopped during this call")
            raise
        except Exception as error:
            self._end(exchange, CallOutcome.TRUNCATED, f"the proxy failed: {type(error).__name__}: {error}")
            raise
        if exchange.client_left:
            self._end(exchange, CallOutcome.CLIENT_GONE, "the client left before the end of the response")

    def _begin(self, dialect: Dialect, tags: Tags, body: bytes) -> _Exchange:
        """Everything that is decided before vLLM is asked; raises `ProxyError` for the agent."""
        now = time.time()
        request = parse(body)
        asked = request.get("model") if isinstance(request, dict) else None
        name = asked if isinstance(asked, str) else ""
        call_id = CallId(new_id())
        identity = Identity(DEFAULT_OWNER, tags.session or f"untagged-{call_id}")
        pinned = self._table.version(identity)
        upstream = self._upstreams.choose(identity.session_id, None)
        version = self._answering(name, pinned, upstream)
        if version is not None:
            try:
                upstream = self._upstreams.choose(identity.session_id, version)
            except NotServing:
                self._policy.want(version)
                raise
        start = CallStart(
            id=call_id,
            identity=identity,
            scenario=tags.scenario,
            split=tags.split,
            agent=tags.agent,
            dialect=dialect.name,
            path=dialect.path,
            model=name,
            version=BASE if version is None else version,
            pinned=pinned,
            upstream=upstream.url,
            streamed=isinstance(request, dict) and request.get("stream") is True,
            started_at=now,
            session_by=tags.session_by,
            scenario_by=tags.scenario_by,
        )
        session = self._table.begin(identity, pinned, now)
        recording = self._recorder.start(start, body)
        model = None if version is None else self._policy.model(upstream, version)
        cutter = capture.Cutter(capture.new_nonce())
        return _Exchange(start, session, recording, cutter, upstream, model, tags.ends, dialect)

    def _answering(self, name: str, pinned: VersionNumber, upstream: Upstream) -> VersionNumber | None:
        """The version that answers to the model ``name``; None where vLLM itself must say what it makes of the name.

        Raises `UnknownVersion` for a version that was never made.
        """
        number = parse_version(self._policy.name, name)
        if number is not None:
            if not self._policy.knows(number):
                raise UnknownVersion(f"The model `{name}` does not exist.")
            self._policy.want(number)
            return number
        if name in self._aliases:
            return pinned
        if name == upstream.base:
            return BASE
        return pinned if "*" in self._aliases and name not in upstream.adapters else None

    async def _watch(self, passing: Coroutine[Any, Any, None], exchange: _Exchange, receive: Receive) -> None:
        """Run the exchange; a client that leaves ends it, unless every choice has finished already."""
        work = asyncio.create_task(passing)
        gone = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                exchange.client_left = True
                if exchange.cutter.capture is None:
                    work.cancel()
            await asyncio.wait({work})
        finally:
            work.cancel()
            gone.cancel()
        if not work.cancelled():
            work.result()

    async def _pass(self, exchange: _Exchange, scope: Scope, body: bytes, send: Send) -> None:
        try:
            response = await self._ask(exchange, scope, body)
        except (aiohttp.ClientError, OSError) as error:
            self._end(exchange, CallOutcome.UPSTREAM_ERROR, f"vLLM did not answer: {error}")
            await exchange.recording.settle()
            fault = UpstreamUnreachable(f"vLLM at {exchange.upstream.url} does not answer: {error}")
            await respond_error(send, fault)
            return
        try:
            await self._return(exchange, response, send)
        finally:
            response.release() if exchange.ended else response.close()

    async def _ask(self, exchange: _Exchange, scope: Scope, body: bytes) -> aiohttp.ClientResponse:
        query = scope["query_string"]
        url = exchange.upstream.url + exchange.start.path + (f"?{query.decode('latin-1')}" if query else "")
        headers = [
            (name.decode("latin-1"), _header_text(value)) for name, value in scope["headers"] if name not in _NOT_SENT
        ]
        headers.append((capture.HEADER, self._upstreams.header(exchange.cutter.nonce, exchange.model)))
        headers.append(("Accept-Encoding", "identity"))
        request = self._upstreams.client.request
        for last_try in (False, True):
            data = body if len(body) <= _ONE_WRITE else io.BytesIO(body)
            try:
                return await request(
                    scope["method"], URL(url, encoded=True), data=data, headers=headers, allow_redirects=False
                )
            except aiohttp.ServerDisconnectedError:
                # A kept connection that vLLM was just closing: no byte of a response came.
                if last_try:
                    raise
        raise AssertionError("the second try returns or raises")

    async def _return(self, exchange: _Exchange, response: aiohttp.ClientResponse, send: Send) -> None:
        exchange.status = response.status
        exchange.first_byte_at = time.time()
        exchange.streams = response.content_type == "text/event-stream"
        await self._send_head(exchange, response, send)
        left = response.content_length
        try:
            async for data in response.content.iter_any():
                left = left - len(data) if left is not None else None
                await self._send_piece(exchange, data, send, last=left == 0)
        except (aiohttp.ClientError, OSError) as error:
            self._end(exchange, CallOutcome.TRUNCATED, f"the response broke off: {error}")
            return  # The server closes the client's connection: it sees the same broken response.
        tail = exchange.cutter.end()
        exchange.recording.piece(tail)
        exchange.held += tail
        self._finish(exchange)
        await exchange.recording.settle()
        await self._send(exchange, send, {"type": "http.response.body", "body": exchange.held})

    async def _send_head(self, exchange: _Exchange, response: aiohttp.ClientResponse, send: Send) -> None:
        headers = [(n.lower(), v) for n, v in response.raw_headers if n.lower() not in _NOT_RETURNED]
        length = response.content_length
        if length is not None:
            frame = capture.frame_length(response.headers.get(capture.HEADER)) or 0
            headers.append((b"content-length", str(length - frame).encode()))
        headers += [
            (b"x-call-id", exchange.start.id.encode()),
            (b"x-session-id", exchange.start.identity.session_id.encode()),
        ]
        if exchange.model is not None:
            headers.append((b"x-policy-version", version_name(self._policy.name, exchange.start.version).encode()))
        if not exchange.recording.works:
            headers.append((b"x-slipstream-recorded", b"false"))
        await self._send(exchange, send, {"type": "http.response.start", "status": response.status, "headers": headers})

    async def _send_piece(self, exchange: _Exchange, data: bytes, send: Send, *, last: bool) -> None:
        captured = exchange.cutter.capture is not None
        data = exchange.cutter.feed(data)
        if exchange.cutter.capture is not None and not captured:
            exchange.recording.capture(exchange.cutter.capture)
        exchange.recording.piece(data)
        if exchange.streams:
            exchange.follow(data)
        if last or exchange.done:
            exchange.held += data
        elif data:
            await self._send(exchange, send, {"type": "http.response.body", "body": data, "more_body": True})

    async def _send(self, exchange: _Exchange, send: Send, message: dict[str, object]) -> None:
        if not exchange.client_left:
            await send(message)

    def _finish(self, exchange: _Exchange) -> None:
        """The response came to its end; was it the end that it should have?"""
        assert exchange.status is not None
        if exchange.status >= 400:
            self._end(exchange, CallOutcome.UPSTREAM_ERROR, f"vLLM answered with status {exchange.status}")
        elif exchange.failed:
            self._end(exchange, CallOutcome.TRUNCATED, "vLLM broke the stream off with an error frame")
        elif exchange.streams and not exchange.done:
            self._end(exchange, CallOutcome.TRUNCATED, "the stream ended without its last frame")
        elif exchange.cutter.capture is None and exchange.model is not None:
            self._end(exchange, CallOutcome.TRUNCATED, "the response ended before vLLM had finished the call")
        else:
            self._end(exchange, CallOutcome.COMPLETE, None)

    def _end(self, exchange: _Exchange, outcome: CallOutcome, error: str | None) -> None:
        """Record the end, once; what comes later is not the call's end any more."""
        if exchange.ended:
            return
        exchange.ended = True
        now = time.time()
        end = CallEnd(outcome, exchange.status, error, exchange.first_byte_at, now)
        exchange.recording.end(end)
        if exchange.start.session_by is not TaggedBy.NONE:
            # A call that failed is made again: it was not the session's last one.
            self._table.finish(exchange.session, now, ends=exchange.ends and outcome is CallOutcome.COMPLETE)
        else:
            self._table.forget(exchange.session)


def _header_text(value: bytes) -> str:
    """A header's value as aiohttp takes it. It writes UTF-8 and nothing else: Latin-1 arrives as the same text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
