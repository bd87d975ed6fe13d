"""What can go wrong, on demand, on every path, plain and streamed.

Asked for by the header `x-fake-fault: <name>` or `<name>:<number>`, by the query `fake_fault=...`, by
`metadata.fake_fault` in the body, or by `FakeVllm.fail_next`. `x-fake-fault-first` is the same as the header, but a
call that an SDK repeats by itself (`x-stainless-retry-count`) meets no fault.

| fault | what happens |
|---|---|
| `slow:S` | S seconds pass before the first byte |
| `drip:S` | S seconds pass before every part of the body |
| `step` | as `heartbeat`, and every part of the body waits until `FakeVllm.step` lets it go |
| `halt` | half of the body's bytes are written, at most half of the plugin's frame, and no more |
| `stall:N` | N parts of the body are written, and no more |
| `linger` | everything but the last part is written, and no more until the client is gone for a moment |
| `heartbeat` | a comment before every frame of a stream |
| `reset-head` | the connection is reset before the head |
| `reset-in-head` | the connection is reset in the middle of the head |
| `reset-body` | the connection is reset in the middle of the body |
| `close-chunk` | a chunk is told and half of it written, then the connection is closed |
| `close-body` | the connection is closed in the middle of the body, between two chunks where there are chunks |
| `long-length` | `Content-Length` tells of seven bytes more than come before the connection is closed |
| `short-length` | `Content-Length` tells of seven bytes fewer than come |
| `both-lengths` | `Content-Length` and `Transfer-Encoding: chunked`, as no server should |
| `error-frame` | a stream breaks off with an error frame; the capture says that it was not finished |
| `no-done` | a stream ends without its last frame |
| `empty` | a stream has no frame at all |
| `bad-request`, `rate-limit:N` | 400 and 429 in vLLM's form, the second with `Retry-After: N` (7 without N) |
| `echo:N` | an error of status N (500 without N) that repeats the request's headers |
| `bad-gateway` | 502 with a page in HTML, chunked |
| `page` | 200 with a page in HTML |
| `redirect:P` | 307 to the same path on port P of this machine |
| `split:N` | the bytes (the capture's, too) are written N at a time, in the middle of characters, too |
| `huge:N` | a frame of N bytes (three million without N) before the others; a plain body of that size |
| `quote:N` | an answer that quotes `data: [DONE]` and a capture's frame, before the others; then as `stall:N` |
| `cut-done:N` | the last part in two writes, N bytes and a moment later the others |
| `crlf` | a stream with CRLF, comments and several frames in one write |
| `bad-frame` | the capture's frame has no length |
| `cookies` | two `Set-Cookie` headers |

A restart is `FakeVllm.restart`. A vLLM 0.32 whose generation fails has an error frame in the dialects but the Responses
API, whose stream is closed as with `close-body`; `error-frame` gives it the one of OpenAI's API.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import parse_qs

from tests.fake_vllm import capture, replies
from tests.fake_vllm.replies import DONE, Reply, event
from tests.fake_vllm.state import Received

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

_HEADER = "x-fake-fault"
_FIRST = "x-fake-fault-first"
_REPEATED = "x-stainless-retry-count"
CONNECTION = "fake.connection"
"""The scope's extension that holds the connection; see `server.Protocol`."""

SERVER = ((b"date", replies.DATE), (b"server", b"uvicorn"))
"""The headers that the server gives every response."""

HUGE = 3_000_000
_FOREVER = 600.0
_LINGER_SECONDS = 0.3
_MOMENT = 0.03
_STEP_SECONDS = 0.001
_LENGTH_ERROR = 7
_PAGE = b"<html><body><h1>502 Bad Gateway</h1></body></html>\n"
_HEARTBEAT = b": keep-alive\n\n"
_CHUNKED = (b"transfer-encoding", b"chunked")
_SAID = {
    "/v1/chat/completions": b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n',
    "/v1/completions": b'data: {"choices":[{"index":0,"text":"%b"}]}\n\n',
    "/v1/responses": b'event: response.output_text.delta\ndata: {"delta":"%b","type":"response.output_text.delta"}\n\n',
    "/v1/messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"%b"}}\n\n',
}
"""A frame in which the model says something."""


Steps = threading.Semaphore


class Connection(Protocol):
    """The server's end of a connection."""

    transport: asyncio.Transport
    lost: asyncio.Event


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    number: float = 0.0

    @classmethod
    def read(cls, text: str) -> Fault:
        name, _, number = text.partition(":")
        return cls(name, float(number or 0))


NO_FAULT = Fault("none")


def asked_for(received: Received) -> Fault:
    """The fault that a request asks for."""
    header = received.header(_HEADER)
    if header is None and received.header(_REPEATED) in (None, "0"):
        header = received.header(_FIRST)
    if header is not None:
        return Fault.read(header)
    if b"fake_fault=" in received.query:
        return Fault.read(parse_qs(received.query.decode("latin-1"))["fake_fault"][0])
    if b'"fake_fault"' not in received.body:
        return NO_FAULT
    try:
        request = json.loads(received.body)
    except (ValueError, RecursionError):
        return NO_FAULT
    metadata = request.get("metadata") if isinstance(request, dict) else None
    text = metadata.get("fake_fault") if isinstance(metadata, dict) else None
    return Fault.read(text) if isinstance(text, str) else NO_FAULT


def spoil(reply: Reply, fault: Fault, received: Received) -> Reply:
    """The response with the fault's content; what concerns time and connection is `write`'s."""
    path = received.path
    match fault.name:
        case "echo":
            told = b"\n".join(name + b": " + value for name, value in received.headers).decode("latin-1")
            return _error(path, int(fault.number or 500), "InternalServerError", f"the request was {told}")
        case "bad-request":
            return _error(path, 400, "BadRequestError", "max_tokens must be at least 1, got -1.")
        case "rate-limit":
            busy = _error(path, 429, "TooManyRequestsError", "the queue is full")
            return replace(busy, headers=((b"retry-after", b"%g" % (fault.number or 7)),))
        case "page":
            return Reply(200, (_PAGE,), b"text/html")
        case "bad-gateway":
            return Reply(502, (_PAGE, _PAGE), b"text/html", headers=(_CHUNKED,))
        case "redirect":
            return Reply(
                307, (b"",), None, headers=((b"location", b"http://127.0.0.1:%d%b" % (fault.number, path.encode())),)
            )
        case "cookies":
            return replace(reply, headers=((b"set-cookie", b"a=1; Path=/"), (b"set-cookie", b"b=2; Path=/")))
        case "huge" if reply.content_type == b"application/json":
            whole = b"".join(reply.parts)
            return replace(reply, parts=(b'{"padding":"%b",' % (b"x" * int(fault.number or HUGE)), whole[1:]), finish=0)
    return _spoil_stream(reply, fault, path) if reply.streamed else reply


def _error(path: str, status: int, kind: str, message: str) -> Reply:
    """An error in the form of the path's dialect."""
    if path.startswith("/v1/messages"):
        return replies.document({"type": "error", "error": {"type": kind, "message": message}}, status)
    return replies.error(status, kind, message)


def _spoil_stream(reply: Reply, fault: Fault, path: str) -> Reply:
    parts, middle = reply.parts, reply.finish // 2
    match fault.name:
        case "error-frame":
            cut = capture.payload([[1]], [], {}, "a generation ended before it was finished")
            return replace(reply, parts=(*parts[:middle], *_last_words(path, middle)), capture=cut, finish=middle)
        case "no-done":
            return replace(reply, parts=parts[:-1], finish=min(reply.finish, len(parts) - 1))
        case "empty":
            return replace(reply, parts=(), capture=None)
        case "heartbeat" | "step":
            return replace(reply, parts=tuple(p for part in parts for p in (_HEARTBEAT, part)), finish=2 * reply.finish)
        case "huge":
            return _with_first(reply, path, b"x" * int(fault.number or HUGE))
        case "quote":
            return _with_first(reply, path, rb"data: [DONE]\n\n\u001e0123456789abcdef0123456789abcdef 5\n")
        case "crlf":
            joined = b": a comment\r\n\r\n" + b"".join(parts[: reply.finish]).replace(b"\n", b"\r\n")
            rest = tuple(part.replace(b"\n", b"\r\n") for part in parts[reply.finish :])
            return replace(reply, parts=(joined, *rest), finish=1)
    return reply


def _last_words(path: str, number: int) -> tuple[bytes, ...]:
    """The frames by which a stream breaks off."""
    text = "the engine fell over"
    if path == "/v1/messages":
        return (event("error", {"type": "error", "error": {"type": "internal_error", "message": text}}),)
    if path == "/v1/responses":
        told = {"code": "server_error", "message": text, "param": None, "sequence_number": number, "type": "error"}
        return (event("error", told),)
    broken = replies.error(500, "InternalServerError", text).parts[0]
    return (b"data: " + broken + b"\n\n", DONE)


def _with_first(reply: Reply, path: str, said: bytes) -> Reply:
    return replace(reply, parts=(_SAID[path] % said, *reply.parts), finish=reply.finish + 1)


async def write(reply: Reply, fault: Fault, mark: capture.Mark | None, steps: Steps, scope: Any, send: Send) -> None:
    """Send the response, captured as the mark asks, with what the fault does to time and connection.

    ``steps`` are those that the fault of this name waits for.
    """
    connection: Connection = scope["extensions"][CONNECTION]
    if fault.name == "slow":
        await asyncio.sleep(fault.number)
    if fault.name == "reset-head":
        _reset(connection)
        return
    messages = list(reply.parts)
    captured = mark is not None and mark.model is not None and reply.capture is not None
    frame = capture.frame(mark.nonce, reply.capture) if captured and mark and reply.capture else b""
    if frame:
        messages.insert(reply.finish, frame)
    if fault.name == "bad-frame" and mark is not None:
        messages.insert(0, b"\x1e%b none\n" % mark.nonce.encode())
    head = _head(reply, messages, frame, mark)
    if fault.name in ("reset-in-head", "long-length", "short-length", "both-lengths"):
        await _write_raw(connection, reply.status, head, messages, fault)
        return
    if fault.name == "split":
        joined, size = b"".join(messages), int(fault.number)
        messages = [joined[at : at + size] for at in range(0, len(joined), size)]
    told = [pair for pair in head if pair != _CHUNKED]  # which the server adds itself
    await send({"type": "http.response.start", "status": reply.status, "headers": told})
    if fault.name == "halt":
        joined = b"".join(messages)
        half = len(joined) // 2
        if frame:  # with it the call would be whole
            half = min(half, joined.index(frame) + len(frame) // 2)
        await send({"type": "http.response.body", "body": joined[:half], "more_body": True})
        await asyncio.sleep(_FOREVER)
    for number, message in enumerate(messages):
        if fault.name == "step" and message is not frame:  # the plugin's frame comes with the part behind it
            while not steps.acquire(blocking=False):  # noqa: ASYNC110 - let go by any thread
                await asyncio.sleep(_STEP_SECONDS)
        message = await _before(message, number, len(messages), fault, send)
        if number == len(messages) // 2 and fault.name in ("reset-body", "close-body", "close-chunk"):
            await _break(connection, message, fault, send, chunked=reply.streamed or _CHUNKED in head)
            return
        await send({"type": "http.response.body", "body": message, "more_body": True})
        if reply.streamed:
            await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


async def _before(message: bytes, number: int, count: int, fault: Fault, send: Send) -> bytes:
    """What the fault does before a part is written; what is left to be written of the part."""
    if fault.name == "drip":
        await asyncio.sleep(fault.number)
    if fault.name in ("stall", "quote") and number == int(fault.number) > 0:
        await asyncio.sleep(_FOREVER)
    if number < count - 1:
        return message
    if fault.name == "linger":
        await asyncio.sleep(_LINGER_SECONDS)
    if fault.name == "cut-done":
        at = int(fault.number)
        await send({"type": "http.response.body", "body": message[:at], "more_body": True})
        await asyncio.sleep(_MOMENT)
        return message[at:]
    return message


async def _break(connection: Connection, message: bytes, fault: Fault, send: Send, *, chunked: bool) -> None:
    half = message[: len(message) // 2]
    if fault.name == "close-chunk" and chunked:
        connection.transport.write(b"%x\r\n" % len(message) + half)
    else:
        await send({"type": "http.response.body", "body": half, "more_body": True})
    if fault.name == "reset-body":
        await asyncio.sleep(_MOMENT)  # so that the half leaves before the reset
        _reset(connection)
    else:
        await _close(connection)


def _head(reply: Reply, messages: list[bytes], frame: bytes, mark: capture.Mark | None) -> list[tuple[bytes, bytes]]:
    headers = list(reply.headers)
    if reply.content_type is not None:
        headers.append((b"content-type", reply.content_type))
    sized = not reply.streamed and _CHUNKED not in reply.headers
    if sized:
        headers.append((b"content-length", b"%d" % sum(map(len, messages))))
    if mark is not None:
        headers.append((capture.HEADER, b"1 %d" % (len(frame) if sized else 0)))
    return headers


async def _write_raw(
    connection: Connection, status: int, head: list[tuple[bytes, bytes]], messages: list[bytes], fault: Fault
) -> None:
    """A response past the server, which would not write it so; then the connection is closed."""
    body = b"".join(messages)
    error = {"long-length": _LENGTH_ERROR, "short-length": -_LENGTH_ERROR}.get(fault.name, 0)
    pairs = [pair for pair in (*SERVER, *head) if pair[0] not in (b"content-length", b"transfer-encoding")]
    pairs.append((b"content-length", b"%d" % (len(body) + error)))
    if fault.name == "both-lengths":
        pairs.append(_CHUNKED)
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    lines = b"".join(b"%b: %b\r\n" % pair for pair in pairs)
    written = b"HTTP/1.1 %d Whatever\r\n%b\r\n%b" % (status, lines, body)
    if fault.name == "reset-in-head":
        connection.transport.write(written[: 20 + len(lines) // 2])
        await asyncio.sleep(_MOMENT)
        _reset(connection)
    else:
        connection.transport.write(written)
        await _close(connection)


async def _close(connection: Connection) -> None:
    """Close as a server does that has written everything that it wanted to."""
    connection.transport.close()
    await asyncio.wait_for(connection.lost.wait(), _FOREVER)


def _reset(connection: Connection) -> None:
    """Break the connection as a dying process does: without a goodbye, what is unread is lost."""
    its: socket.socket = connection.transport.get_extra_info("socket")
    its.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.transport.abort()
