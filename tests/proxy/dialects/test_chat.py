"""What is read in a chat completion: the messages that a client puts together, whatever the server sent."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.dialects import Continued, Issued
from proxy.dialects.chat import ChatCompletions
from tests.fake_vllm import FakeVllm

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
    fake = FakeVllm(model="m")
    plain = fake.answer("/v1/chat/completions", request)
    streamed = fake.answer("/v1/chat/completions", {**request, "stream": True})
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


TOOL_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

CARRIED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as openai's client dumps it": (
        {"content": "yes", "refusal": None, "annotations": [], "tool_calls": None},
        {"content": "yes"},
    ),
    "with an empty text beside calls": ({"content": "", "tool_calls": [TOOL_CALL]}, {"tool_calls": [TOOL_CALL]}),
    "with the indexes of a stream": (
        {"content": None, "tool_calls": [{**TOOL_CALL, "index": 0}]},
        {"tool_calls": [TOOL_CALL]},
    ),
    "with reasoning": ({"content": "yes", "reasoning": "hm"}, {"content": "yes", "reasoning": "hm"}),
    "empty": ({"content": ""}, {"content": ""}),
}


@pytest.mark.parametrize(("carried", "normal"), CARRIED.values(), ids=CARRIED.keys())
def test_the_next_request_carries_the_answer_back_in_the_same_form(
    carried: dict[str, Any], normal: dict[str, Any]
) -> None:
    message = {"role": "assistant", **carried}
    plain = orjson.dumps({"choices": [{"index": 0, "message": message}]})
    request = {"messages": [{"role": "user", "content": "x", "name": None}, message]}
    assert output(plain, streamed=False) == [{"role": "assistant", **normal}]
    assert CHAT.read(orjson.dumps(request), b"", False).messages == (
        {"role": "user", "content": "x", "name": None},
        {"role": "assistant", **normal},
    )


def test_the_old_form_of_a_call_is_put_together_too() -> None:
    frames = stream((0, {"function_call": {"name": "f", "arguments": "{"}}), (0, {"function_call": {"arguments": "}"}}))
    assert output(frames) == [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]


def test_names_that_calls_give_away_and_take_up() -> None:
    frames = stream((0, {"tool_calls": [call(0, id="a", name="f")]}), (1, {"tool_calls": [call(0, id="b", name="f")]}))
    assert CHAT.issued(frames, True) == Issued(None, ("a", "b"))
    asked = [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "a"}, {"role": "tool"}]
    assert CHAT.continued({"messages": asked}) == Continued(None, ("a",))
