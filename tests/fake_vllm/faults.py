"""What can go wrong, on demand: header `x-fake-fault: <name>` or `<name>:<number>`, or `metadata.fake_fault`.

`x-fake-fault-first` is the same, but a call that an SDK repeats by itself (`x-stainless-retry-count`) meets no fault.

| fault | what happens |
|---|---|
| `slow:S` | S seconds pass before the first byte |
| `stall:N` | N parts of the body are written, and no more |
| `linger` | everything but the last part is written, and no more until the client is gone for a moment |
| `reset-head` | the connection is reset before the head |
| `reset-body` | the connection is reset in the middle of the body |
| `error-frame` | a stream breaks off with an error frame, then `[DONE]`; the capture says that it was not finished |
| `no-done` | a stream ends without `[DONE]` |
| `empty` | a stream has no frame at all |
| `bad-request`, `rate-limit:N` | 400 and 429 in vLLM's form, the second with `Retry-After: N` (7 without N) |
| `bad-gateway` | 502 with a page in HTML, chunked |
| `split:N` | the bytes (the capture's, too) are written N at a time |
| `huge` | a frame of three million bytes before the others |
| `quote:N` | an answer that quotes `data: [DONE]` and a capture's frame, before the others; then as `stall:N` |
| `cut-done:N` | the last part in two writes, N bytes and a moment later the others |
| `crlf` | a stream with CRLF, comments and several frames in one write |
| `bad-frame` | the capture's frame has no length |
| `cookies` | two `Set-Cookie` headers |
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.fake_vllm import capture, replies
from tests.fake_vllm.replies import DONE, Reply

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

HEADER = b"x-fake-fault"
_FIRST = b"x-fake-fault-first"
_REPEATED = b"x-stainless-retry-count"
TRANSPORT = "fake.transport"
"""The scope's extension that holds the connection; see `server.Protocol`."""

HUGE = 3_000_000
_FOREVER = 30.0
_LINGER_SECONDS = 0.3
_CUT_SECONDS = 0.03
_PAGE = b"<html><body><h1>502 Bad Gateway</h1></body></html>\n"


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    number: float = 0.0

    @classmethod
    def read(cls, text: str) -> Fault:
        name, _, number = text.partition(":")
        return cls(name, float(number or 0))


NO_FAULT = Fault("none")


def asked_for(headers: Sequence[tuple[bytes, bytes]], request: Any) -> Fault:
    """The fault that a request asks for."""
    given = dict(headers)
    text = given.get(HEADER) or (given.get(_FIRST) if given.get(_REPEATED, b"0") == b"0" else None)
    if text is not None:
        return Fault.read(text.decode())
    metadata = request.get("metadata") if isinstance(request, dict) else None
    wanted = metadata.get("fake_fault") if isinstance(metadata, dict) else None
    return Fault.read(wanted) if isinstance(wanted, str) else NO_FAULT


def spoil(reply: Reply, fault: Fault) -> Reply:
    """The response with the fault's content; what concerns time and connection is `write`'s."""
    if fault.name == "bad-request":
        return replies.error(400, "BadRequestError", "max_tokens must be at least 1, got -1.")
    if fault.name == "rate-limit":
        busy = replies.error(429, "TooManyRequestsError", "the queue is full")
        return replace(busy, headers=((b"retry-after", b"%g" % (fault.number or 7)),))
    if fault.name == "bad-gateway":
        return Reply(502, (_PAGE, _PAGE), b"text/html", headers=((b"transfer-encoding", b"chunked"),))
    if fault.name == "cookies":
        return replace(reply, headers=((b"set-cookie", b"a=1; Path=/"), (b"set-cookie", b"b=2; Path=/")))
    return _spoil_stream(reply, fault) if reply.streamed else reply


def _spoil_stream(reply: Reply, fault: Fault) -> Reply:
    parts, middle = reply.parts, reply.finish // 2
    if fault.name == "error-frame":
        broken = replies.error(500, "InternalServerError", "the engine fell over").parts[0]
        cut = capture.payload([1], [], {}, "a generation ended before it was finished")
        return replace(reply, parts=(*parts[:middle], b"data: " + broken + b"\n\n", DONE), capture=cut, finish=middle)
    if fault.name == "no-done":
        return replace(reply, parts=parts[:-1])
    if fault.name == "empty":
        return replace(reply, parts=(), capture=None)
    if fault.name == "huge":
        return _with_first(reply, b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * HUGE))
    if fault.name == "quote":
        said = rb"data: [DONE]\n\n\u001e0123456789abcdef0123456789abcdef 5\n"
        return _with_first(reply, b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % said)
    if fault.name == "crlf":
        joined = b": a comment\r\n\r\n" + b"".join(parts[: reply.finish]).replace(b"\n\n", b"\r\n\r\n")
        rest = tuple(part.replace(b"\n\n", b"\r\n\r\n") for part in parts[reply.finish :])
        return replace(reply, parts=(joined, *rest), finish=1)
    return reply


def _with_first(reply: Reply, part: bytes) -> Reply:
    return replace(reply, parts=(part, *reply.parts), finish=reply.finish + 1)


async def write(reply: Reply, fault: Fault, mark: capture.Mark | None, plugin: bool, scope: Any, send: Send) -> None:
    """Send the response, captured as the mark asks, with what the fault does to time and connection."""
    if fault.name == "slow":
        await asyncio.sleep(fault.number)
    if fault.name == "reset-head":
        _reset(scope)
        return
    messages = list(reply.parts)
    captured = mark is not None and mark.model is not None and reply.capture is not None
    frame = capture.frame(mark.nonce, reply.capture) if captured and mark and reply.capture else b""
    await send({"type": "http.response.start", "status": reply.status, "headers": _head(reply, frame, mark, plugin)})
    if frame:
        messages.insert(reply.finish, frame)
    if fault.name == "bad-frame" and mark is not None:
        messages.insert(0, b"\x1e%b none\n" % mark.nonce.encode())
    if fault.name == "split":
        joined, size = b"".join(messages), int(fault.number)
        messages = [joined[at : at + size] for at in range(0, len(joined), size)]
    for number, message in enumerate(messages):
        if fault.name in ("stall", "quote") and number == int(fault.number) > 0:
            await asyncio.sleep(_FOREVER)
        if fault.name == "linger" and number == len(messages) - 1:
            await asyncio.sleep(_LINGER_SECONDS)
        if fault.name == "cut-done" and number == len(messages) - 1:
            at = int(fault.number)
            await send({"type": "http.response.body", "body": message[:at], "more_body": True})
            await asyncio.sleep(_CUT_SECONDS)
            message = message[at:]
        if fault.name == "reset-body" and number == len(messages) // 2:
            await send({"type": "http.response.body", "body": message[: len(message) // 2], "more_body": True})
            await asyncio.sleep(0.02)  # so that the half leaves before the reset
            _reset(scope)
            return
        await send({"type": "http.response.body", "body": message, "more_body": True})
        if reply.streamed:
            await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


def _head(reply: Reply, frame: bytes, mark: capture.Mark | None, plugin: bool) -> list[tuple[bytes, bytes]]:
    headers = [(b"server", b"uvicorn"), (b"content-type", reply.content_type), *reply.headers]
    sized = not reply.streamed and (b"transfer-encoding", b"chunked") not in reply.headers
    if sized:
        headers.append((b"content-length", b"%d" % (sum(map(len, reply.parts)) + len(frame))))
    if plugin and mark is not None:
        headers.append((capture.HEADER, b"1 %d" % (len(frame) if sized else 0)))
    return headers


def _reset(scope: Any) -> None:
    """Break the connection as a dying process does: without a goodbye, what is unread is lost."""
    transport: asyncio.Transport = scope["extensions"][TRANSPORT]
    connection: socket.socket = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
