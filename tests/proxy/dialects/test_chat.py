"""What is read in a chat completion: the messages that a client puts together, whatever the server sent."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import DIALECTS, read_call
from proxy.dialects.chat import ChatCompletions
from storage.text import dumps
from storage.types import BASE, DEFAULT_OWNER, CallId, CallStart, Identity
from tests.fake_vllm import replies
from tests.fake_vllm.engine import BASE_WEIGHTS, Model

CHAT = ChatCompletions()


def stream(*deltas: tuple[int, Any], end: bytes = b"\n\n") -> bytes:
    """An event stream of deltas, each with its choice's index."""
    frames = [{"choices": [{"index": index, "delta": delta}]} for index, delta in deltas]
    return b"".join(b"data: " + orjson.dumps(frame) + end for frame in frames) + b"data: [DONE]" + end


def output(response: bytes, *, streamed: bool = True) -> list[Any]:
    return list(CHAT.read(b"{}", response, streamed).output)


def call(index: int | None, **fields: Any) -> dict[str, Any]:
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return {"index": index, **fields, "function": function}


def whole(**fields: Any) -> dict[str, Any]:
    found = call(None, **fields)
    del found["index"]
    return found


MERGED: dict[str, tuple[list[tuple[int, Any]], list[dict[str, Any]]]] = {
    "text": (
        [(0, {"role": "assistant", "content": ""}), (0, {"content": "He"}), (0, {"content": "llo"}), (0, {})],
        [{"role": "assistant", "content": "Hello"}],
    ),
    "two choices": (
        [(1, {"content": "b"}), (0, {"content": "a"}), (1, {"content": "B"}), (0, {"content": "A"})],
        [{"role": "assistant", "content": "aA"}, {"role": "assistant", "content": "bB"}],
    ),
    "reasoning, then refusal": (
        [(0, {"reasoning": "x"}), (0, {"reasoning": "y", "reasoning_content": "r"}), (0, {"refusal": "no"})],
        [{"role": "assistant", "reasoning": "xy", "reasoning_content": "r", "refusal": "no"}],
    ),
    "unknown fields": (
        [(0, {"mood": "calm", "citations": [1]}), (0, {"content": None, "empty": []})],
        [{"role": "assistant", "mood": "calm", "citations": [1]}],
    ),
    "parallel tool calls, by index": (
        [
            (0, {"tool_calls": [call(0, id="a", type="function", name="f", arguments="")]}),
            (0, {"tool_calls": [call(1, id="b", type="function", name="g", arguments="{")]}),
            (0, {"tool_calls": [call(0, arguments="{}"), call(1, arguments="}")]}),
        ],
        [
            {
                "role": "assistant",
                "tool_calls": [
                    whole(id="a", type="function", name="f", arguments="{}"),
                    whole(id="b", type="function", name="g", arguments="{}"),
                ],
            }
        ],
    ),
    "tool calls that share an index, by id": (
        [
            (0, {"tool_calls": [call(0, id="a", name="f", arguments="1")]}),
            (0, {"tool_calls": [call(0, id="b", name="g", arguments="2")]}),
            (0, {"tool_calls": [call(0, id="a", arguments="1")]}),
            (0, {"tool_calls": [call(0, id="b", arguments="2")]}),
        ],
        [
            {
                "role": "assistant",
                "tool_calls": [whole(id="a", name="f", arguments="11"), whole(id="b", name="g", arguments="22")],
            }
        ],
    ),
}


@pytest.mark.parametrize(("deltas", "messages"), MERGED.values(), ids=MERGED.keys())
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\n: comment\n\n"], ids=["lf", "crlf", "comments"])
def test_deltas_become_messages(deltas: list[tuple[int, Any]], messages: list[dict[str, Any]], end: bytes) -> None:
    assert output(stream(*deltas, end=end)) == messages


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("tools", [[], ["search", "größe"]], ids=["text", "tools"])
def test_a_stream_reads_like_the_plain_answer(n: int, tools: list[str]) -> None:
    request: dict[str, Any] = {"model": "m", "n": n, "messages": [{"role": "user", "content": "wie groß ist 日本?"}]}
    if tools:
        request["tools"] = [{"type": "function", "function": {"name": name}} for name in tools]
    model = Model("m", BASE_WEIGHTS)
    plain = replies.chat(model, request, b"").parts[0]
    streamed = b"".join(replies.chat(model, {**request, "stream": True}, b"").parts)
    assert output(streamed) == output(plain, streamed=False)


def test_the_request_is_read() -> None:
    request = {"messages": [{"role": "user", "content": "x"}, "odd", None], "tools": [{"a": 1}]}
    reading = CHAT.read(orjson.dumps(request), b"", True)
    assert reading.messages == ({"role": "user", "content": "x"},)
    assert list(reading.tools) == [{"a": 1}]
    assert reading.output == ()


def test_an_error_frame_is_no_message() -> None:
    frames = stream((0, {"content": "so far"})) + b'data: {"error": {"message": "broken"}}\n\ndata: [DONE]\n\n'
    assert output(frames) == [{"role": "assistant", "content": "so far"}]


def test_a_call_is_read_by_its_dialect() -> None:
    assert list(DIALECTS) == ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
    start = CallStart(
        id=CallId("0" * 32),
        identity=Identity(DEFAULT_OWNER, "s"),
        scenario=None,
        split="train",
        agent=None,
        dialect="chat",
        path="/v1/chat/completions",
        model="m",
        version=BASE,
        pinned=BASE,
        upstream="u",
        streamed=True,
        started_at=0.0,
    )
    assert read_call(start, b"{}", stream((0, {"content": "x"}))).output == ({"role": "assistant", "content": "x"},)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["content", "tool_calls", "role", "refusal", "reasoning", "index", "function", "id", "name"])
fragment = st.dictionaries(st.sampled_from(["index", "id", "type", "function", "name", "arguments"]), anything)
delta = st.dictionaries(names, anything | st.lists(fragment | anything, max_size=3), max_size=4)
choice = st.fixed_dictionaries({"delta": delta | anything}, optional={"index": anything, "message": delta | anything})
document = st.fixed_dictionaries({"choices": st.lists(choice | anything, max_size=3) | anything})


@given(st.lists(document | anything, max_size=5))
def test_nothing_that_a_server_sends_stops_the_reading(documents: list[Any]) -> None:
    frames = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)
    assert dumps(output(frames))
    for one in documents:
        assert dumps(output(json.dumps(one).encode(), streamed=False))
        assert CHAT.read(json.dumps(one).encode(), b"", False).output == ()


@given(st.binary(max_size=200))
def test_nothing_that_is_no_json_stops_the_reading(data: bytes) -> None:
    for streamed in (False, True):
        CHAT.read(data, b"data: " + data, streamed)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}"])
def test_deep_nesting_stops_nothing(data: bytes) -> None:
    reading = CHAT.read(data, data, False)
    assert dumps(reading.messages) == b"[]"
