"""The middleware that carries a call's tokens back to the proxy, given to vLLM as

    --middleware proxy.vllm_plugin.capture.CaptureMiddleware

The proxy marks its requests with `x-slipstream: <secret> <nonce> <model>`, and those to be explored with
a fourth field, `temperature=1.0,top_p=1.0,top_k=0,min_p=0.0`. The response gets
`x-slipstream: 1 <n>`: the protocol's version, and the length of the capture at the head of a plain body. In
an event stream the capture is a body message of its own, ahead of the frames that end the answer. Both are
the frame of `recording.Call.frame`. A request without the right secret passes as if the plugin were not there.
"""

import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from . import engine
from .recording import Call, Exploration
from .settings import PluginError, read_secret, refuse_rust_frontend

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = b"x-slipstream"
PROTOCOL_VERSION = 1
AS_THE_BODY_SAYS = "-"
"""In place of a model: answer as without the plugin, and capture nothing."""

_RECORDED_PATHS = ("/chat/completions", "/completions", "/responses", "/messages")
_NONCE = re.compile(r"[0-9a-f]{32}")
_NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)"
_EXPLORATION = re.compile(rf"temperature={_NUMBER},top_p={_NUMBER},top_k=([0-9]+),min_p={_NUMBER}")

_LAST_EVENTS = (b"event: response.completed", b"event: response.incomplete", b"event: response.failed")
"""The events that end a stream of the Responses API."""
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Mark:
    """The header of a request that the proxy sent."""

    nonce: str
    model: str
    exploration: Exploration | None = None
    """What the tokens are sampled with, whatever the body says; None: as the body says."""


def read_mark(headers: list[tuple[bytes, bytes]], secret: bytes) -> Mark | None:
    """The proxy's mark, or None where there is none, a malformed one or one with a wrong secret."""
    values = [value for name, value in headers if name.lower() == HEADER]
    if len(values) != 1:
        return None
    fields = values[0].split(b" ")
    # The secret first, and in constant time: what else is wrong is told to nobody.
    if len(fields) not in (3, 4) or not hmac.compare_digest(fields[0], secret):
        return None
    try:
        nonce, model = fields[1].decode("ascii"), unquote(fields[2].decode("ascii"), errors="strict")
        exploration = _exploration(fields[3].decode("ascii")) if len(fields) == 4 else None
    except ValueError:
        return None
    if not _NONCE.fullmatch(nonce) or not model:
        return None
    return Mark(nonce, model, exploration)


def _exploration(text: str) -> Exploration:
    """The sampling in a mark's fourth field. Raises ValueError where it is none that vLLM can sample with."""
    found = _EXPLORATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    temperature, top_p, top_k, min_p = found.groups()
    return Exploration(float(temperature), float(top_p), int(top_k), float(min_p))


class CaptureMiddleware:
    """A raw ASGI middleware; vLLM makes one in its API server, and only there.

    Where it cannot work (no secret, another front end, a vLLM whose inside has changed) it fails the ASGI
    start-up with the reason, which ends the server. An exception here would not: uvicorn takes it for an
    application without start-up, and would serve nothing but errors.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._secret = b""
        self._fault: PluginError | None = None
        try:
            refuse_rust_frontend()
            self._secret = read_secret()
            engine.install()
        except PluginError as error:
            self._fault = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._fault is not None:
            await self._fail(self._fault, scope, receive, send)
            return
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = list(scope["headers"])
        mark = read_mark(headers, self._secret)
        # In every case: vLLM hands headers on to logs and traces, and the secret has no place there.
        scope = {**scope, "headers": [pair for pair in headers if pair[0].lower() != HEADER]}
        if mark is None or scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        await self._answer(mark, scope, receive, send)

    async def _answer(self, mark: Mark, scope: Scope, receive: Receive, send: Send) -> None:
        if mark.model == AS_THE_BODY_SAYS:
            await self._app(scope, receive, _Response(None, send).send)
            return
        call = Call(mark.nonce, mark.model, mark.exploration)
        call.captures = scope["method"] == "POST" and scope["path"].endswith(_RECORDED_PATHS)
        token = engine.CURRENT.set(call)
        try:
            await self._app(scope, receive, _Response(call, send).send)
        finally:
            engine.CURRENT.reset(token)

    @staticmethod
    async def _fail(fault: PluginError, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            raise fault
        await receive()
        await send({"type": "lifespan.startup.failed", "message": f"Slipstream's plugin refuses to start: {fault}"})


class _Response:
    """The sending half of a marked request: adds the header, and the capture of the call if there is one."""

    def __init__(self, call: Call | None, send: Send) -> None:
        self._call = call
        self._send = send
        self._streams = False
        """The capture is still to be sent, inside a stream."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._start(message)
            return
        if self._streams and message["type"] == "http.response.body" and self._due(message):
            self._streams = False
            if self._call is not None and not self._call.empty:
                await self._send({"type": "http.response.body", "body": self._call.frame(), "more_body": True})
        # Nothing is held back, joined or cut: the client's bytes go on as vLLM sent them.
        await self._send(message)

    async def _start(self, message: Message) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        by_name = {name.lower(): value for name, value in headers}
        self._streams = by_name.get(b"content-type", b"").startswith(b"text/event-stream")
        frame = b""
        if self._call is not None and not self._streams and b"content-length" in by_name:
            if self._call.started or (message["status"] < 400 and not self._call.empty):
                frame = self._call.frame()
            length = b"%d" % (int(by_name[b"content-length"]) + len(frame))
            headers = [(name, length if name.lower() == b"content-length" else value) for name, value in headers]
        headers.append((HEADER, b"%d %d" % (PROTOCOL_VERSION, len(frame))))
        await self._send({**message, "headers": headers})
        if frame:
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    def _due(self, message: Message) -> bool:
        """Whether this message of a stream is one that the capture must be ahead of."""
        body: bytes = message.get("body", b"")
        # Clients stop reading at [DONE], and at the end there is no later.
        if not message.get("more_body", False) or body.endswith(_DONE):
            return True
        call = self._call
        if call is None or call.running or call.empty:
            return False
        # The Responses API may generate again, after a built-in tool: only its last event is the end.
        return body.startswith(_LAST_EVENTS) or not body.startswith(b"event: response.")
