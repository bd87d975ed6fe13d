"""The upstream: answers as vLLM with Slipstream's plugin does, from precomputed bytes, as cheaply as Python can.

Streams advance as an engine does: each step gives every running stream one frame. A request without the plugin's
mark gets the same answer without capture. Run as ``python -m scripts.bench.proxying.upstream``; it prints its port.
"""

from __future__ import annotations

import asyncio
import json
import signal
from functools import cache

import httptools
import uvloop

from scripts.bench.proxying.replies import MODEL, TASK, VARIANTS, Reply, reply

STEP_SECONDS = 0.004
"""Between two frames of a stream."""

_MARK = b"x-slipstream"
_JSON = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
_EVENTS = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"x-slipstream: 1 0\r\ntransfer-encoding: chunked\r\n\r\n"
)
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "root": MODEL, "parent": None}]})


class Engine:
    """Gives each running stream its next frame at every step, and sleeps while none runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: list[Stream] = []
        self._ticking = False

    def add(self, stream: Stream) -> None:
        if stream.step():
            self._running.append(stream)
            if not self._ticking:
                self._ticking = True
                self._loop.call_later(STEP_SECONDS, self._step)

    def _step(self) -> None:
        self._running = [stream for stream in self._running if stream.step()]
        self._ticking = bool(self._running)
        if self._ticking:
            self._loop.call_later(STEP_SECONDS, self._step)


class Stream:
    """A stream under way."""

    def __init__(self, transport: asyncio.Transport, chunks: list[bytes]) -> None:
        self._transport = transport
        self._left = iter(chunks)
        self._count = len(chunks)

    def step(self) -> bool:
        """Send the next frame; returns whether there is a further one."""
        self._count -= 1
        if self._transport.is_closing():
            return False
        self._transport.write(next(self._left))
        return self._count > 0


class Connection(asyncio.Protocol):
    """One kept connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._mark = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's are not asyncio's

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._mark, self._body = b"", []

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == _MARK:
            self._mark = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._url != b"/v1/chat/completions":
            body = _MODELS.encode()
            self._transport.write(b"%bx-slipstream: 1 0\r\ncontent-length: %d\r\n\r\n%b" % (_JSON, len(body), body))
            return
        nonce = self._mark.split(b" ")[1] if self._mark else None
        answer = _find(b"".join(self._body))
        if answer.frames:
            self._engine.add(Stream(self._transport, _chunks(answer, nonce)))
        else:
            self._transport.write(_whole(answer, nonce))


def _find(request: bytes) -> Reply:
    """The answer to a request, by its last question."""
    begin = request.rindex(TASK) + len(TASK)
    session, turn, name = request[begin : request.index(b":", begin)].decode().split(".")
    return reply(name, int(session) % VARIANTS, int(turn))


def _frame(answer: Reply, nonce: bytes) -> bytes:
    return b"\x1e%b %d\n%b" % (nonce, len(answer.capture), answer.capture)


def _whole(answer: Reply, nonce: bytes | None) -> bytes:
    if nonce is None:
        return b"%bcontent-length: %d\r\n\r\n%b" % (_JSON, len(answer.body), answer.body)
    frame = _frame(answer, nonce)
    length = len(frame) + len(answer.body)
    return b"%bx-slipstream: 1 %d\r\ncontent-length: %d\r\n\r\n%b%b" % (_JSON, len(frame), length, frame, answer.body)


@cache
def _chunked(answer: Reply) -> list[bytes]:
    return [b"%x\r\n%b\r\n" % (len(frame), frame) for frame in answer.frames]


def _chunks(answer: Reply, nonce: bytes | None) -> list[bytes]:
    """What is written at each step. The last token's frame, the finish and `[DONE]` come out of one step."""
    chunks = list(_chunked(answer))
    captured = b""
    if nonce is not None:
        frame = _frame(answer, nonce)
        captured = b"%x\r\n%b\r\n" % (len(frame), frame)
    chunks[0] = _EVENTS + chunks[0]
    return [*chunks[:-2], captured + chunks[-2] + chunks[-1] + b"0\r\n\r\n"]


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(loop)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stop.wait()


if __name__ == "__main__":
    uvloop.run(_serve())
