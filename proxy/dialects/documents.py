"""JSON and server-sent events as agents and servers really send them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson


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


def events(stream: bytes) -> Iterator[Any]:
    """The JSON documents of the ``data:`` lines of an event stream; others (comments, ``[DONE]``) are passed over."""
    for line in stream.splitlines():
        if line.startswith(b"data:"):
            document = parse(line[5:].strip())
            if document is not None:
                yield document
