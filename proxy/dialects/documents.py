"""JSON and server-sent events as agents and servers really send them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import orjson

Document = dict[str, Any]

_T = TypeVar("_T")

_LONGEST_NUMBER = 18
"""Digits; SQLite can keep them."""


def parse(data: bytes) -> Any:
    """The JSON document in ``data``, or None. What orjson refuses (NaN, lone surrogates) Python's json may read."""
    if not data:
        return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def events(stream: bytes) -> list[Document]:
    """The JSON objects of an event stream. Comments, ``[DONE]`` and whatever else is no object are passed over.

    The last event is given even when the blank line that ends it never came.
    """
    lines = stream.splitlines()
    data = [line[5:] for line in lines if line.startswith(b"data:") and line != _DONE]
    try:
        # As a rule each line is a document: one parse for all costs half of one for each.
        documents = orjson.loads(b"[%b]" % b",".join(data))
    except orjson.JSONDecodeError:
        return list(_one_by_one(lines))
    return _dicts(documents) if len(documents) == len(data) else list(_one_by_one(lines))


def _one_by_one(lines: list[bytes]) -> Iterator[Document]:
    first: bytes | None = None
    more: list[bytes] = []
    for line in lines:
        if line.startswith(b"data:"):
            if line == _DONE:
                continue
            if first is None:
                first = line[5:]
            else:
                more.append(line[5:])
        elif not line and first is not None:
            yield from _objects([first, *more])
            first, more = None, []
    if first is not None:
        yield from _objects([first, *more])


_DONE = b"data: [DONE]"
"""Passed over before a parser is asked: it is in every stream of OpenAI's older dialects."""


def _objects(lines: list[bytes]) -> list[Document]:
    """One document over several lines; or, where a server forgets the blank lines, one in each line."""
    document = parse(b"\n".join(lines))
    return _dicts([document] if document is not None else map(parse, lines))


def _dicts(found: Iterable[Any]) -> list[Document]:
    return [one for one in found if isinstance(one, dict)]


def field(document: Any, name: str, kind: type[_T]) -> _T | None:
    """The field ``name`` of an object, where it is of that kind."""
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, kind) else None


def count(document: Any, *names: str) -> int | None:
    """The first of the fields ``names`` of an object that says a number of tokens, as vLLM reads it: 6, 6.0 or "6"."""
    for name in names:
        value = document.get(name) if isinstance(document, dict) else None
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _LONGEST_NUMBER:
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and 0 <= value < 10**_LONGEST_NUMBER:
            return int(value)
    return None


def objects(document: Any, name: str) -> list[Document]:
    """The objects in the list ``name`` of an object; whatever else stands in it is left out."""
    return _dicts(field(document, name, list) or ())
