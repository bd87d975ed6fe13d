"""Repeated calls: an SDK that lost its answer asks again, and gets the answer that was computed for it.

Only what a client left behind is given to another call, each answer once, and only to a call that says that it is a
repetition, of the same owner, session and bytes. So equal calls of parallel rollouts are never taken for one another.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from proxy.asgi import Headers, Send
from storage.types import CallId, Identity

_RETRIES = b"x-stainless-retry-count"
_KEPT_SECONDS = 60.0
_KEPT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response, in the pieces in which it would have left."""

    status: int
    headers: list[tuple[bytes, bytes]]
    pieces: tuple[bytes, ...]

    async def send(self, send: Send) -> None:
        """All of it; that it ends there is for the caller to say."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})


@dataclass(slots=True, eq=False)
class Abandoned:
    """A call whose client left before the end of its response."""

    call: CallId
    key: bytes
    at: float
    """On the monotonic clock."""
    answer: asyncio.Future[Answer | None]
    """None: it was not answered to the end."""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Repeat:
    """What a repeated call finds."""

    answer: Answer | None
    supersedes: CallId | None
    """The call that it takes the place of, where there is no answer to give again."""
    taken: Abandoned | None = None
    """Whose answer it is."""


class Repeats:
    """What clients left behind in the last minute, oldest first."""

    def __init__(self) -> None:
        self._left: OrderedDict[CallId, Abandoned] = OrderedDict()
        self._by_key: dict[bytes, list[Abandoned]] = {}
        self._bytes = 0

    def leave(self, key: bytes, call: CallId) -> Abandoned:
        """A client left its call; `settle` comes when the call ends. Without a key it is never found again."""
        abandoned = Abandoned(call, key, time.monotonic(), asyncio.get_running_loop().create_future())
        if key:
            self._left[call] = abandoned
            self._by_key.setdefault(key, []).append(abandoned)
        return abandoned

    def settle(self, abandoned: Abandoned, answer: Answer | None) -> None:
        """The call ended: with a complete answer, or None."""
        if answer is not None:
            abandoned.size = sum(map(len, answer.pieces))
            if abandoned.call in self._left:
                self._bytes += abandoned.size
        if not abandoned.answer.done():
            abandoned.answer.set_result(answer)
        self.forget_old()

    async def find(self, key: bytes) -> Repeat:
        """The oldest complete answer that was left under ``key``, else the oldest call that was; each is found once."""
        self.forget_old()
        unanswered: list[Abandoned] = []
        answer = taken = None
        while answer is None and (waiting := self._by_key.get(key)):
            taken = found = waiting[0]
            self._remove(found)
            try:
                answer = await asyncio.shield(found.answer)
            except asyncio.CancelledError:  # nobody waits for it any more
                self._put_back(found, *unanswered)
                raise
            if answer is None:
                unanswered.append(found)
        # An answer takes the place of none; without one, a single call takes the place of a single other.
        self._put_back(*unanswered[0 if answer is not None else 1 :])
        if answer is not None:
            return Repeat(answer, None, taken)
        return Repeat(None, unanswered[0].call if unanswered else None)

    def give_back(self, repeat: Repeat) -> None:
        """The client that repeated its call left, too, before it had the answer."""
        if repeat.taken is not None:
            self._put_back(repeat.taken)

    def _put_back(self, *abandoned: Abandoned) -> None:
        for one in abandoned:
            self._left[one.call] = one
            self._by_key.setdefault(one.key, []).append(one)
            self._bytes += one.size

    def forget_old(self) -> None:
        oldest = time.monotonic() - _KEPT_SECONDS
        while self._left:
            first = next(iter(self._left.values()))
            if first.at > oldest and self._bytes <= _KEPT_BYTES:
                return
            self._remove(first)

    def _remove(self, abandoned: Abandoned) -> None:
        del self._left[abandoned.call]
        self._bytes -= abandoned.size
        same = self._by_key[abandoned.key]
        same.remove(abandoned)
        if not same:
            del self._by_key[abandoned.key]


def is_repeated(headers: Headers) -> bool:
    """Whether the client says that it made this call before. OpenAI's and Anthropic's SDKs count their retries."""
    return any(name == _RETRIES and value.isdigit() and value.strip(b"0") for name, value in headers)


def key_of(identity: Identity, path: str, query: bytes, body: bytes) -> bytes:
    """What must be equal for one call to be another's repetition."""
    digest = hashlib.sha256()
    parts: Iterable[bytes] = (
        identity.owner.encode(),
        identity.session_id.encode("utf-8", "surrogatepass"),
        path.encode(),
        query,
        body,
    )
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()
