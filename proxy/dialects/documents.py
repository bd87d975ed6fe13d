"""JSON and server-sent events as agents and servers really send them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

import orjson

Document = dict[str, Any]

_T = TypeVar("_T")


def parse(data: bytes) -> Any:
    """The JSON document in ``data``, or None. What orjson refuses (NaN, lone surrogates) Python's json may read."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def events(stream: bytes) -> Iterator[Document]:
    """The JSON objects of an event stream. Comments, ``[DONE]`` and whatever else is no object are passed over.

    The last event is given even when the blank line that ends it never came.
    """
    lines: list[bytes] = []
    for line in stream.splitlines():
        if line.startswith(b"data:"):
            lines.append(line[5:].strip())
        elif not line and lines:
            yield from _event(lines)
            lines = []
    yield from _event(lines)


def _event(lines: list[bytes]) -> Iterator[Document]:
    """One document over several lines; or, where a server forgets the blank lines, one in each line."""
    document = parse(b"\n".join(lines)) if lines else None
    for found in [document] if document is not None or len(lines) < 2 else map(parse, lines):
        if isinstance(found, dict):
            yield found


def metadata(document: Any) -> Document:
    """The `metadata` object of a request; every dialect carries it in the same place."""
    return field(document, "metadata", dict) or {}


def field(document: Any, name: str, kind: type[_T]) -> _T | None:
    """The field ``name`` of an object, where it is of that kind."""
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, kind) else None


def objects(document: Any, name: str) -> list[Document]:
    """The objects in the list ``name`` of an object; whatever else stands in it is left out."""
    return [one for one in field(document, name, list) or [] if isinstance(one, dict)]
