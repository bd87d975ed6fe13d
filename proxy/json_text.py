"""JSON text, changed in places and left alone everywhere else.

The text is the bytes read as Latin-1: a character is a byte, so that places in it are places in the bytes, whatever
encoding they are of (all that JSON itself consists of is ASCII). A name outside ASCII is not recognised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_read = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\n\r]*")


class Place(NamedTuple):
    """Where a value stands: ``text[start:end]``."""

    start: int
    end: int


class Change(NamedTuple):
    place: Place
    text: str


def members(text: str, at: int = 0) -> Iterator[tuple[str, Place]]:
    """The members of the object that begins at ``at`` (or behind white space there), in order, repeated names too.

    Raises `ValueError` where the text is no such object, and RecursionError where it is too deep.
    """
    at = _expect(text, at, "{")
    if text[at : at + 1] == "}":
        return
    while True:
        _after(text, at, '"')
        name, at = _read(text, at)
        at = _expect(text, at, ":")
        _, end = _read(text, at)
        yield name, Place(at, end)
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            return
        at = _expect(text, at, ",")


def elements(text: str, at: int) -> Iterator[Place]:
    """The elements of the array that begins at ``at``. Raises as `members`."""
    at = _expect(text, at, "[")
    if text[at : at + 1] == "]":
        return
    while True:
        _, end = _read(text, at)
        yield Place(at, end)
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            return
        at = _expect(text, at, ",")


def changed(text: str, changes: Iterable[Change]) -> str:
    """The text with other values in some places, which do not overlap."""
    for (start, end), new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def put(body: bytes, values: dict[str, Any]) -> bytes:
    """The object ``body`` with ``values`` among its members: where a name stands already, else behind the others.

    Raises as `members`.
    """
    text = body.decode("latin-1")
    changes, missing, last = [], dict(values), None
    for name, place in members(text):
        last = place
        if name in values:
            changes.append(Change(place, dumps(values[name])))
            missing.pop(name, None)
    if missing:
        more = ",".join(f"{dumps(name)}:{dumps(value)}" for name, value in missing.items())
        at = last.end if last else _expect(text, 0, "{")
        changes.append(Change(Place(at, at), f",{more}" if last else more))
    return changed(text, changes).encode("latin-1")


def dumps(value: Any) -> str:
    """``value`` as vLLM writes JSON, in the form of this module's texts."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode("latin-1")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _after(text: str, at: int, wanted: str) -> int:
    if text[at : at + 1] != wanted:
        raise ValueError(f"{wanted} expected at {at}")
    return at + 1


def _expect(text: str, at: int, wanted: str) -> int:
    """The place behind ``wanted``, and behind the white space on both its sides."""
    return _skip(text, _after(text, _skip(text, at), wanted))
