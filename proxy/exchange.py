"""One call: the request as it arrived, and the exchange with vLLM that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from proxy.asgi import Scope
from proxy.capture import Exploration
from proxy.dialects import DIALECTS, LONGEST_FRAME
from proxy.inference import Inferred
from proxy.paths import Route
from proxy.recorder import Recording
from proxy.repeats import Abandoned, Answer, is_repeated, key_of
from proxy.sessions import OpenSession
from proxy.tags import Tags
from proxy.upstreams import Upstream
from storage.secrecy import Blotter
from storage.types import CallId, CallStart, Identity, version_name

_ERRORS = {dialect.name: [b"\n" + frame for frame in dialect.error_frames] for dialect in DIALECTS.values()}
_ENDS = {dialect.name: [b"\n" + frame for frame in dialect.last_frames] for dialect in DIALECTS.values()}


@dataclass(frozen=True)
class Request:
    """An agent's request, whole, and whose it is."""

    scope: Scope
    route: Route
    tags: Tags
    inferred: Inferred
    body: bytes
    document: Any
    """The body as JSON; None where it is none."""
    call: CallId
    identity: Identity

    @property
    def can_be_repeated(self) -> bool:
        """Whether a repetition of this call is given its answer."""
        return self.tags.session is not None and self.route.dialect is not None

    @property
    def repeats(self) -> bool:
        """The client says that it made this call before."""
        return self.can_be_repeated and is_repeated(self.scope["headers"])

    @cached_property
    def key(self) -> bytes:
        """By which a repeated call finds this one; empty: it is never given to another."""
        if not self.can_be_repeated:
            return b""
        return key_of(self.identity, self.route.path, self.scope["query_string"], self.body)

    @property
    def remembers(self) -> bool:
        """Whether the response will be asked for when it is whole."""
        return self.can_be_repeated or self.inferred.turn is not None

    @cached_property
    def model(self) -> str:
        """As the client wrote it; empty where it wrote none."""
        name = self.document.get("model") if isinstance(self.document, dict) else None
        return name if isinstance(name, str) else ""

    @property
    def streamed(self) -> bool:
        return isinstance(self.document, dict) and self.document.get("stream") is True


class Capturer(Protocol):
    """Takes the tokens of a call out of its response."""

    @property
    def capture(self) -> bytes | None:
        """The tokens, once they are there: all choices have finished then."""
        ...

    @property
    def resizes(self) -> bool:
        """Whether a plain response has another length for the client, known at its end."""
        ...

    def feed(self, data: bytes) -> bytes:
        """The client's bytes among those that came."""
        ...

    def end(self) -> bytes:
        """What was held back, now that nothing more comes."""
        ...


@dataclass(frozen=True, slots=True)
class Blotting:
    """A `Capturer` for an error, which may repeat the request with its secrets."""

    inner: Capturer
    blotter: Blotter

    @property
    def capture(self) -> bytes | None:
        return self.inner.capture

    @property
    def resizes(self) -> bool:
        return self.inner.resizes

    def feed(self, data: bytes) -> bytes:
        return self.blotter.feed(self.inner.feed(data))

    def end(self) -> bytes:
        return self.blotter.feed(self.inner.end()) + self.blotter.end()


@dataclass(slots=True)
class Exchange:
    """A call under way."""

    request: Request
    start: CallStart
    session: OpenSession | None
    """None, like the recording: a request that is no call (a list of models)."""
    recording: Recording | None
    upstream: Upstream
    nonce: str
    model: str | None
    """The vLLM model that answers; None: as the body says."""
    body: bytes
    """As vLLM gets it."""
    capturer: Capturer
    exploration: Exploration | None
    """With what it is sampled; None: as the client asks."""
    capture_recorded: bool = False
    streams: bool = False
    """The response is an event stream."""
    tail: bytes = b"\n"
    """The end of what came of it, where a frame may have begun."""
    done: bool = False
    """Its last frame came."""
    failed: bool = False
    """An error frame came."""
    status: int | None = None
    head: list[tuple[bytes, bytes]] = field(default_factory=list)
    """The response's headers, as the client gets them."""
    pieces: list[bytes] = field(default_factory=list)
    """What the client gets, kept where it will be asked for again."""
    first_byte_at: float | None = None
    held: bytes = b""
    """The response's last bytes: they leave when the call's end is recorded."""
    abandoned: Abandoned | None = None
    """Set when the client has left."""
    delivered: bool = False
    """Its last bytes have left."""
    ended: bool = False
    complete: bool = False
    """It ended as it should."""

    @property
    def client_left(self) -> bool:
        return self.abandoned is not None

    @property
    def captured(self) -> bool:
        return self.capturer.capture is not None

    def take(self, data: bytes, *, last: bool) -> bytes:
        """What came of the response; returns what of it leaves now, and is recorded. ``last``: nothing of it does."""
        data = self.capturer.feed(data)
        if self.capturer.capture is not None:
            self.record_capture()
        if self.streams:
            self.follow(data)
        if last or self.done:
            self.keep(data)
            return b""
        if data:
            if self.recording is not None:
                self.recording.piece(data)
            if self.request.remembers:
                self.pieces.append(data)
        return data

    def keep(self, data: bytes) -> None:
        """A piece that leaves only when the call's end is recorded."""
        if not data:
            return
        if self.recording is not None:
            self.recording.keep(data)
        if self.request.remembers:
            self.pieces.append(data)
        self.held += data

    def record_capture(self) -> None:
        """The tokens, as soon as they are there, once."""
        if self.recording is not None and self.capturer.capture is not None and not self.capture_recorded:
            self.recording.capture(self.capturer.capture)
            self.capture_recorded = True

    async def settle(self) -> None:
        """Until the records of the call are as safe as the settings ask."""
        if self.recording is not None:
            await self.recording.settle()

    def answer(self) -> Answer:
        """The whole response, to be given again."""
        assert self.status is not None
        return Answer(self.status, self.head, tuple(self.pieces))

    def marks(self, policy: str) -> list[tuple[bytes, bytes]]:
        """The headers that Slipstream adds to the response."""
        if self.recording is None:
            return []
        found = [
            (b"x-call-id", self.start.id.encode()),
            (b"x-session-id", self.start.identity.session_id.encode()),
        ]
        if self.model is not None:
            found.append((b"x-policy-version", version_name(policy, self.start.version).encode()))
        if not self.recording.works:
            found.append((b"x-slipstream-recorded", b"false"))
        return found

    def follow(self, data: bytes) -> None:
        """Look for the frames that end a stream. They begin a line, which no text in a frame can, split anywhere."""
        dialect = self.request.route.dialect
        if dialect is None:
            return
        text = self.tail + data
        for begin in _ERRORS[dialect.name]:
            if begin in text:
                self.failed = True
        for begin in _ENDS[dialect.name]:
            if begin in text:
                self.done = True
        self.tail = text[-LONGEST_FRAME:]
