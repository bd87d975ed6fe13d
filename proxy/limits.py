"""What a request may not exceed. Each limit has a 4xx and a text of its own; vLLM never sees what is above."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from proxy.asgi import Headers
from proxy.errors import BadRequest, HeadersTooLarge, TooLarge, TooManyCalls
from proxy.settings import LimitSettings
from storage.text import counted
from storage.types import Owner

HEADER_BYTES = 64 * 1024
"""Names and values of a request's headers together."""
DEPTH = 200
"""Arrays and objects in one another: what every parser on the way, vLLM's among them, can read."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_OPENED = (b"[", b"{")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""A level up and a level down, as signed bytes."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_LONG = 2**20
_AT_ONCE = 2**16
"""Brackets that are counted before it is looked whether they are enough."""


class Limits:
    """The limits of one proxy, and how many calls of each owner are under way."""

    def __init__(self, settings: LimitSettings) -> None:
        self.body_bytes = settings.body * 2**20
        self._n = settings.n
        self._calls = settings.calls
        self._under_way: dict[Owner, int] = {}

    def check_headers(self, headers: Headers) -> None:
        """Raises `HeadersTooLarge`, and `TooLarge` where a body's length is given that is too large to be read."""
        size = 0
        for name, value in headers:
            size += len(name) + len(value)
            if name == b"content-length" and int(value) > self.body_bytes:
                raise TooLarge.than(self.body_bytes)
        if size > HEADER_BYTES:
            raise HeadersTooLarge(f"the headers have {size} bytes; they can have {HEADER_BYTES}")

    def check_request(self, body: bytes, document: Any) -> None:
        """Raises `BadRequest` for nesting beyond `DEPTH` and for too many choices.

        ``document`` is the JSON in ``body``, or None where none could be read.
        """
        # To count the brackets of a short body costs less than to walk its document; of a long one, fewer count.
        if len(body) > _LONG or body.count(b"[") + body.count(b"{") > DEPTH:
            self._check_depth(body, document)
        if isinstance(document, dict):
            for name in ("n", "best_of"):
                if _number(document.get(name)) > self._n:
                    raise BadRequest(f"{name} is {document[name]!r:.30}; it can be at most {self._n} ([limit] n)")

    @contextmanager
    def under_way(self, owner: Owner) -> Iterator[None]:
        """A call of ``owner``, from its head to the last byte of its response. Raises `TooManyCalls`."""
        count = self._under_way.get(owner, 0)
        if count >= self._calls:
            raise TooManyCalls(
                f"{counted(count, 'call')} of this client key under way, as many as it may have ([limit] calls): "
                "repeat this one when another has ended"
            )
        self._under_way[owner] = count + 1
        try:
            yield
        finally:
            self._under_way[owner] -= 1
            if not self._under_way[owner]:
                del self._under_way[owner]

    def _check_depth(self, body: bytes, document: Any) -> None:
        depth = _depth(document) if isinstance(document, dict | list) else _depth_of_text(body)
        if depth > DEPTH:
            raise BadRequest(f"the JSON is nested more than {DEPTH} levels deep")


def _number(value: Any) -> float:
    """What vLLM makes of a number, which it also takes as a float or as text; 0 for what is none."""
    if value is None:
        return 0.0
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return 0.0


def _depth(document: dict[str, Any] | list[Any]) -> int:
    """Levels of a document; counted up to one more than `DEPTH`."""
    depth = 0
    level: list[Any] = [document]
    while level and depth <= DEPTH:
        depth += 1
        items = [one.values() if type(one) is dict else one for one in level]
        level = [item for some in items for item in some if type(item) is dict or type(item) is list]
    return depth


def _depth_of_text(body: bytes) -> int:
    """Levels of a text that is meant as JSON, and that no parser of ours reads: too deep for it, or no JSON at all.

    Without a step of Python for each bracket: fifty million of them would hold up every agent for seconds.
    """
    if body.lstrip(b" \t\r\n")[:1] not in _OPENED:
        return 0
    steps = array("b", _STRING.sub(b"", body).translate(_STEPS, _NO_BRACKETS))
    depth = deepest = 0
    for at in range(0, len(steps), _AT_ONCE):
        depths = list(accumulate(steps[at : at + _AT_ONCE], initial=depth))
        depth, deepest = depths[-1], max(deepest, *depths)
        if deepest > DEPTH:
            break
    return deepest
