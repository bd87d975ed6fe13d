"""The load generator: agents on kept connections, each working through conversations, the same for every contender.

What an agent sends is what OpenAI's SDK for Python sends, with Slipstream's tags. It is raw asyncio, so that it costs
little beside what it measures.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from scripts.bench.proxying.replies import TURNS, Workload, request_body

LIMIT_SECONDS = 300.0

_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: gzip, deflate\r\n"
    "connection: keep-alive\r\naccept: application/json\r\ncontent-type: application/json\r\n"
    "user-agent: OpenAI/Python 3.57.0\r\nx-stainless-lang: python\r\nx-stainless-package-version: 3.57.0\r\n"
    "x-stainless-os: Linux\r\nx-stainless-arch: x64\r\nx-stainless-runtime: CPython\r\n"
    "x-stainless-runtime-version: 3.11.7\r\nauthorization: Bearer sk-bench\r\nx-stainless-async: false\r\n"
    "x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\nx-scenario-id: task-%d\r\n"
    "x-session-id: %s-%d\r\n%scontent-length: %d\r\n\r\n"
)
_SCENARIOS = 50
_END = b"\r\n0\r\n\r\n"

_conversations = itertools.count()


@dataclass(frozen=True, slots=True)
class Kept:
    """A call whose bytes were kept, to be compared with its record."""

    call_id: str
    session: int
    turn: int
    request: bytes
    body: bytes


@dataclass(slots=True)
class Outcome:
    """What a run of calls gave; times in seconds, one for each call (gaps: one for each frame after the first)."""

    wall: float = 0.0
    accepted: int = 0
    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    """To the first byte of a body."""
    gaps: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    port: int
    workload: Workload
    name: str
    left: int
    keep: set[int]
    """The numbers of the calls to keep, counted down."""
    outcome: Outcome
    agents: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)


class _Agent(asyncio.Protocol):
    """One agent on one connection: makes its next call when the last one was answered, until none is left."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._turn = TURNS
        self._session = -1
        self._received = b""
        self._keeps = False
        self._length: int | None = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's are not asyncio's
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended:
            self._run.outcome.faults.append(f"the connection was lost ({exc})")
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._transport.close()
        self._run.agents -= 1
        if not self._run.agents:
            self._run.done.set()

    def _next(self) -> None:
        run = self._run
        if not run.left:
            self._end()
            return
        self._keeps = run.left in run.keep
        run.left -= 1
        self._turn += 1
        if self._turn >= TURNS:
            self._turn, self._session = 0, next(_conversations)
        self._request = request_body(run.workload, self._session, self._turn)
        ends = "x-session-end: true\r\n" if self._turn == TURNS - 1 else ""
        scenario = self._session % _SCENARIOS
        head = _HEAD % (run.port, scenario, run.name, self._session, ends, len(self._request))
        self._received, self._length = b"", None
        self._sent = self._last = time.perf_counter()
        self._transport.write(head.encode() + self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._received or self._length is None:
            self._received += data
            self._read_head(now)
        else:
            if self._run.workload.streams:
                self._run.outcome.gaps.append(now - self._last)
            self._received += data
        self._last = now
        if self._length is None:
            return
        if len(self._received) >= self._length if self._length else self._received.endswith(_END):
            self._answered(now)

    def _read_head(self, now: float) -> None:
        """Finds where the body begins and ends: `_length` is of head and body, 0 for a chunked one."""
        end = self._received.find(b"\r\n\r\n") + 4
        if end < 4 or len(self._received) == end:
            return  # the first byte of the body is what counts
        self._head = self._received[:end].lower()
        at = self._head.find(b"\r\ncontent-length:")
        self._length = end + int(self._head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        self._run.outcome.firsts.append(now - self._sent)

    def _answered(self, now: float) -> None:
        outcome = self._run.outcome
        outcome.latencies.append(now - self._sent)
        if not self._head.startswith(b"http/1.1 200"):
            outcome.faults.append(f"answered with {self._head[:15]!r} {self._received[len(self._head) :][:300]!r}")
        else:
            outcome.accepted += 1
            if self._keeps:
                outcome.kept.append(self._keep())
        self._next()

    def _keep(self) -> Kept:
        at = self._head.find(b"\r\nx-call-id:")
        call_id = self._head[at + 12 :].split(b"\r\n", 1)[0].strip().decode() if at >= 0 else ""
        body = self._received[len(self._head) :]
        return Kept(call_id, self._session, self._turn, self._request, body if self._length else _unchunked(body))


def _unchunked(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)


async def make_calls(
    port: int, workload: Workload, count: int, at_once: int, name: str, keep: set[int] | None = None
) -> Outcome:
    """``count`` calls to 127.0.0.1:``port`` by ``at_once`` agents; raises TimeoutError after `LIMIT_SECONDS`."""
    run = _Run(port, workload, name, count, keep or set(), Outcome(), agents=at_once)
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    for _ in range(at_once):
        await loop.create_connection(lambda: _Agent(run), "127.0.0.1", port)
    async with asyncio.timeout(LIMIT_SECONDS):
        await run.done.wait()
    run.outcome.wall = time.perf_counter() - began
    return run.outcome
