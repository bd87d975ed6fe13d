"""Event streams as servers really send them."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.dialects.documents import events

A, B = {"a": 1}, {"b": "x"}

SENT: dict[str, tuple[bytes, list[Any]]] = {
    "two events": (b'data: {"a":1}\n\ndata: {"b":"x"}\n\n', [A, B]),
    "crlf": (b'data: {"a":1}\r\n\r\ndata: {"b":"x"}\r\n\r\n', [A, B]),
    "cr": (b'data: {"a":1}\r\rdata: {"b":"x"}\r\r', [A, B]),
    "no space behind the colon": (b'data:{"a":1}\n\n', [A]),
    "names, ids, comments, heartbeats": (b': hi\n\nevent: x\nid: 3\ndata: {"a":1}\n\n:\n\n', [A]),
    "one document over two lines": (b'data: {"a":\ndata: 1}\n\ndata: {"b":"x"}\n\n', [A, B]),
    "no blank line between": (b'data: {"a":1}\ndata: {"b":"x"}\n', [A, B]),
    "no blank line at the end": (b'data: {"a":1}\n\ndata: {"b":"x"}', [A, B]),
    "cut off": (b'data: {"a":1}\n\ndata: {"b":"', [A]),
    "done": (b'data: {"a":1}\n\ndata: [DONE]\n\n', [A]),
    "done, and more": (b'data: [DONE]\n\ndata: {"a":1}\n\n', [A]),
    "no objects": (b"data: [1]\n\ndata: 2\n\ndata:\n\ndata: null\n\ndata: {]\n\n", []),
    "a line separator in a text": ('data: {"a":"\u2028\x85"}\n\n'.encode(), [{"a": "\u2028\x85"}]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("stream", "documents"), SENT.values(), ids=SENT.keys())
def test_events(stream: bytes, documents: list[Any]) -> None:
    assert list(events(stream)) == documents
