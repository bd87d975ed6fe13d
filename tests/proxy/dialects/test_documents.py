"""Event streams as servers really send them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


_frames = st.sampled_from(
    [
        b'data: {"a":1}\n\n',
        b'data:{"a":[1]}\r\n\r\n',
        b'data: {"a":1},{"b":2}\n\n',
        b'data: {"a":NaN}\n\n',
        b"data: {\n\n",
        b"data: 1\n",
        b"data: [DONE]\n\n",
        b"event: x\n",
        b": hi\n\n",
        b"\n",
    ]
)


@given(stream=st.lists(_frames, max_size=6).map(b"".join))
def test_whatever_else_is_in_a_stream_an_event_is_read_alike(stream: bytes) -> None:
    """A broken frame lets all be read one by one; without it they are read at once, where they can be."""
    assert events(stream + b"\n\ndata: {broken\n\n") == events(stream + b"\n\n")
