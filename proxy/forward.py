"""The path of an agent's call: a raw ASGI app that passes bytes on, and records them while they pass."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from proxy import capture, foreign, headers
from proxy.asgi import ClientGone, Receive, Scope, Send, client_of, read_body, respond_error
from proxy.connections import Response
from proxy.dialects import OTHER
from proxy.dialects.documents import field, parse
from proxy.errors import NoSuchResponse, ProxyError, UnknownVersion, UpstreamUnreachable, VersionLoading
from proxy.exchange import Blotting, Capturer, Exchange, Request
from proxy.inference import Inference
from proxy.limits import Limits
from proxy.paths import find_route
from proxy.recorder import Recorder
from proxy.repeats import Repeat, Repeats
from proxy.sessions import SessionTable
from proxy.settings import ProxySettings
from proxy.tags import read_tags
from proxy.upstreams import Upstream, Upstreams
from proxy.versions import Policy
from storage.secrecy import Blotter
from storage.states import CallOutcome
from storage.types import (
    BASE,
    CallEnd,
    CallId,
    CallStart,
    Identity,
    Owner,
    TaggedBy,
    VersionNumber,
    new_id,
    parse_version,
)

_MARK = capture.HEADER.encode()
_LOADING_SECONDS = 30.0
"""So long a call waits for its version. A load takes vLLM seconds; clients give up after minutes."""
_LOOK_SECONDS = 0.1


class Forward:
    """Serves vLLM's paths. One instance for the life of the process."""

    def __init__(
        self,
        settings: ProxySettings,
        limits: Limits,
        upstreams: Upstreams,
        policy: Policy,
        table: SessionTable,
        inference: Inference,
        recorder: Recorder,
    ) -> None:
        self._limits = limits
        self._upstreams = upstreams
        self._policy = policy
        self._table = table
        self._inference = inference
        self._recorder = recorder
        self._aliases = frozenset(settings.alias)
        self._exploration = settings.sampling.exploration
        self._repeats = Repeats()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, owner: Owner) -> None:
        try:
            request = await self._read(scope, receive, owner)
            repeat = await self._repeat(request, send) if request.repeats else Repeat(None, None)
            if repeat.answer is not None:
                return
            try:
                exchange = await self._begin_served(request, repeat.supersedes)
            except Exception:
                self._inference.learn(request.inferred, None)
                raise
        except ClientGone:
            return
        except ProxyError as error:
            await respond_error(send, error, path=scope["path"])
            return
        await self._serve(exchange, send)

    async def _read(self, scope: Scope, receive: Receive, owner: Owner) -> Request:
        """The request, whole, and whose it is. Raises `ProxyError` for the agent."""
        route = find_route(scope["method"], scope["raw_path"])
        body = await read_body(receive, self._limits.body_bytes)
        document = parse(body)
        self._limits.check_request(body, document)
        tags = read_tags(scope["headers"], route, document)
        stored = route.response_id or field(document, "previous_response_id", str)
        if stored and not self._table.may_read(owner, stored):
            raise NoSuchResponse(stored)
        call = CallId(new_id())
        inferred = self._inference.find(owner, scope, route.dialect, tags, document)
        identity = Identity(owner, inferred.session_id)
        return Request(scope, route, tags, inferred, body, document, call, identity)

    async def _repeat(self, request: Request, send: Send) -> Repeat:
        """Give a repeated call the answer that was left, where there is one; returns what it found.

        A client that leaves before it has the answer leaves it for its next try. Raises `ClientGone`.
        """
        client = client_of(request.scope)
        finding = asyncio.create_task(self._repeats.find(request.key))
        gone = finding.cancel
        client.watch(gone)
        try:
            repeat = await finding
            if repeat.answer is not None:
                await self._recorder.settle()
                await repeat.answer.send(send)
                await asyncio.sleep(0)  # so that a client that is gone by now is known to be
                if client.gone:
                    self._repeats.give_back(repeat)
                    raise ClientGone
                await send({"type": "http.response.body", "body": b""})
            return repeat
        except asyncio.CancelledError:
            if client.gone:
                raise ClientGone from None
            raise
        finally:
            client.unwatch(gone)

    async def _begin_served(self, request: Request, supersedes: CallId | None) -> Exchange:
        """`_begin`, as soon as the version that the call needs is loaded; not for ever, nor where it cannot be."""
        client, end = client_of(request.scope), time.monotonic() + _LOADING_SECONDS
        while True:
            try:
                return self._begin(request, supersedes)
            except VersionLoading as loading:
                if time.monotonic() > end or not self._policy.comes(loading.version):
                    raise
            await asyncio.sleep(_LOOK_SECONDS)
            if client.gone:
                raise ClientGone

    def _begin(self, request: Request, supersedes: CallId | None) -> Exchange:
        """Everything that is decided before vLLM is asked; raises `ProxyError` for the agent."""
        now = time.time()
        identity, tags, route, inferred = request.identity, request.tags, request.route, request.inferred
        pinned = self._table.version(identity)
        upstream = self._upstreams.choose(identity.session_id, None)
        version = self._answering(request.model, pinned, upstream)
        if version is not None:
            try:
                upstream = self._upstreams.choose(identity.session_id, version)
            except VersionLoading:
                self._policy.want(version)
                raise
        start = CallStart(
            id=request.call,
            identity=identity,
            scenario=inferred.scenario,
            split=tags.split,
            agent=tags.agent,
            dialect=route.dialect.name if route.dialect else OTHER,
            path=route.path,
            model=request.model,
            version=BASE if version is None else version,
            pinned=pinned,
            upstream=upstream.url,
            streamed=request.streamed,
            started_at=now,
            session_by=inferred.session_by,
            scenario_by=inferred.scenario_by,
            ambiguous=inferred.ambiguous,
            supersedes=supersedes,
        )
        nonce = capture.new_nonce()
        model = None if version is None else self._policy.model(upstream, version)
        exploration = self._exploration if self._explores(request, upstream) else None
        body, capturer = self._prepare(request, upstream, nonce, model, exploration)
        return Exchange(
            request=request,
            start=start,
            session=self._table.begin(identity, pinned, now, tags.split) if route.recorded else None,
            recording=self._recorder.start(start, request.body) if route.recorded else None,
            upstream=upstream,
            nonce=nonce,
            model=model,
            body=body,
            capturer=capturer,
            exploration=exploration,
        )

    @staticmethod
    def _prepare(
        request: Request, upstream: Upstream, nonce: str, model: str | None, exploration: capture.Exploration | None
    ) -> tuple[bytes, Capturer]:
        """The body that vLLM gets, and what takes the tokens out of its response."""
        if upstream.plugin:
            return request.body, capture.Cutter(nonce)
        dialect = request.route.dialect.name if request.route.dialect and model is not None else None
        return foreign.prepare(dialect, request.body, request.document, model, exploration)

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
        return pinned if "*" in self._aliases and name and name not in upstream.adapters else None

    def _explores(self, request: Request, upstream: Upstream) -> bool:
        """Whether the call is the policy's own: of no version that the client names, and not for evaluation."""
        named = request.model == upstream.base or parse_version(self._policy.name, request.model) is not None
        evaluates = request.tags.split == "eval" or self._table.evaluates(request.identity)
        return not evaluates and not named

    async def _serve(self, exchange: Exchange, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        client, gone = client_of(exchange.request.scope), partial(self._gone, exchange, task)
        client.watch(gone)
        try:
            await self._pass(exchange, send)
        except asyncio.CancelledError:
            # The client's leaving is undone here; whoever else cancels means it.
            if not exchange.client_left or task.uncancel():
                self._end(exchange, CallOutcome.INTERRUPTED, "the proxy stopped during this call")
                raise
        except Exception as error:
            self._end(exchange, CallOutcome.TRUNCATED, f"the proxy failed: {type(error).__name__}: {error}")
            raise
        finally:
            client.unwatch(gone)
        if exchange.client_left:
            self._end(exchange, CallOutcome.CLIENT_GONE, "the client left before the end of the response")

    def _gone(self, exchange: Exchange, work: asyncio.Task[Any]) -> None:
        """A client that leaves ends its call, unless every choice has finished already."""
        if exchange.delivered:
            return
        exchange.abandoned = self._repeats.leave(exchange.request.key, exchange.start.id)
        if exchange.ended:  # its last bytes wait until the disk confirms them
            self._repeats.settle(exchange.abandoned, exchange.answer() if exchange.complete else None)
        elif not exchange.captured:
            work.cancel()

    async def _pass(self, exchange: Exchange, send: Send) -> None:
        try:
            response = await self._ask(exchange)
        except OSError as error:
            self._end(exchange, CallOutcome.UPSTREAM_ERROR, f"vLLM did not answer: {error}")
            await exchange.settle()
            fault = UpstreamUnreachable(f"vLLM at {exchange.upstream.url} does not answer: {error}")
            await respond_error(send, fault, exchange.marks(self._policy.name), path=exchange.start.path)
            return
        try:
            await self._return(exchange, response, send)
        finally:
            response.close()

    async def _ask(self, exchange: Exchange) -> Response:
        request = exchange.request
        query = request.scope["query_string"]
        target = request.route.path.encode() + (b"?" + query if query else b"")
        fields = headers.sent(request.scope["headers"])
        if exchange.upstream.plugin:
            mark = self._upstreams.header(exchange.nonce, exchange.model, exchange.exploration)
            fields.append((_MARK, mark.encode()))
        fields.append((b"accept-encoding", b"identity"))
        return await self._upstreams.ask(exchange.upstream, request.scope["method"], target, fields, exchange.body)

    async def _return(self, exchange: Exchange, response: Response, send: Send) -> None:
        exchange.status = response.status
        exchange.first_byte_at = time.time()
        exchange.streams = (response.header(b"content-type") or b"").lower().startswith(b"text/event-stream")
        if response.status >= 400:
            exchange.capturer = Blotting(exchange.capturer, Blotter(self._upstreams.secrets))
        whole = exchange.capturer.resizes and not exchange.streams
        if not whole:
            frame = capture.frame_length((response.header(_MARK) or b"").decode("latin-1")) or 0
            self._make_head(exchange, response, response.length and response.length - frame)
            await self._send_head(exchange, send)
        try:
            while data := await response.read():
                if leaves := exchange.take(data, last=whole or response.complete):
                    await self._send(exchange, send, {"type": "http.response.body", "body": leaves, "more_body": True})
        except OSError as error:
            self._end(exchange, CallOutcome.TRUNCATED, f"the response broke off: {error}")
            if whole:
                self._make_head(exchange, response, response.length)
                await self._send_head(exchange, send)
            return  # The server closes the client's connection: it sees the same broken response.
        exchange.keep(exchange.capturer.end())
        exchange.record_capture()
        if whole:
            self._make_head(exchange, response, len(exchange.held))
        self._finish(exchange)
        await exchange.settle()
        try:
            if whole:
                await self._send_head(exchange, send)
            await self._send(exchange, send, {"type": "http.response.body", "body": exchange.held})
            exchange.delivered = not exchange.client_left
        finally:
            if exchange.complete:
                answer = b"".join(exchange.pieces)
                self._inference.learn(exchange.request.inferred, answer, delivered=not exchange.client_left)

    def _make_head(self, exchange: Exchange, response: Response, length: int | None) -> None:
        """``length`` as the client gets the body; None: unknown before its end."""
        head = headers.returned(response.headers)
        if length is not None:
            head.append((b"content-length", b"%d" % length))
        head += exchange.marks(self._policy.name)
        exchange.head = head

    async def _send_head(self, exchange: Exchange, send: Send) -> None:
        head = exchange.head
        await self._send(exchange, send, {"type": "http.response.start", "status": exchange.status, "headers": head})

    async def _send(self, exchange: Exchange, send: Send, message: dict[str, object]) -> None:
        if exchange.abandoned is None:
            await send(message)

    def _finish(self, exchange: Exchange) -> None:
        """The response came to its end; was it the end that it should have?"""
        assert exchange.status is not None
        if exchange.status >= 400:
            self._end(exchange, CallOutcome.UPSTREAM_ERROR, f"vLLM answered with status {exchange.status}")
        elif exchange.failed:
            self._end(exchange, CallOutcome.TRUNCATED, "vLLM broke the stream off with an error frame")
        elif exchange.streams and exchange.request.route.dialect and not exchange.done:
            self._end(exchange, CallOutcome.TRUNCATED, "the stream ended without its last frame")
        elif exchange.request.route.dialect and exchange.model is not None and not exchange.captured:
            self._end(exchange, CallOutcome.TRUNCATED, "the response ended before vLLM had finished the call")
        else:
            self._end(exchange, CallOutcome.COMPLETE, None)

    def _end(self, exchange: Exchange, outcome: CallOutcome, error: str | None) -> None:
        """Record the end, once; what comes later is not the call's end any more."""
        if exchange.ended:
            return
        exchange.ended = True
        now = time.time()
        complete = exchange.complete = outcome is CallOutcome.COMPLETE
        if not complete:
            self._inference.learn(exchange.request.inferred, None)
        if exchange.recording is not None:
            exchange.recording.end(CallEnd(outcome, exchange.status, error, exchange.first_byte_at, now))
        if exchange.abandoned is not None:
            self._repeats.settle(exchange.abandoned, exchange.answer() if complete else None)
        if exchange.session is None:
            return
        if exchange.start.session_by is not TaggedBy.NONE:
            # A call that failed is made again: it was not the session's last one.
            self._table.finish(exchange.session, now, ends=exchange.request.tags.ends and complete)
        else:
            self._table.forget(exchange.session)
