"""What holds in every dialect: real streams are read, however they are cut, and nothing that is sent stops it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import DIALECTS, LONGEST_FRAME, Dialect, Issued, is_stream, read_call
from storage.text import dumps
from storage.types import BASE, DEFAULT_OWNER, CallId, CallStart, Identity
from tests.proxy.dialects.sent import TOOL_CALLS, answer, sent, stream

CHAT, COMPLETIONS, RESPONSES, MESSAGES = DIALECTS.values()

COMPACT = answer('{"city":"Köln"}', '{"zone":1.0}')
"""Anthropic's arguments are an object, not a text."""

STREAMS = {
    "chat": (CHAT, "chat.sse", answer()),
    "responses": (RESPONSES, "responses.sse", answer()),
    "messages": (MESSAGES, "messages.sse", COMPACT),
}


def by_path(response: bytes, dialect: Dialect) -> CallStart:
    return CallStart(
        id=CallId("0" * 32),
        identity=Identity(DEFAULT_OWNER, "s"),
        scenario=None,
        split="train",
        agent=None,
        dialect=dialect.name,
        path=dialect.path,
        model="m",
        version=BASE,
        pinned=BASE,
        upstream="u",
        streamed=is_stream(response),
        started_at=0.0,
    )


def test_the_four() -> None:
    assert list(DIALECTS) == ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
    assert [dialect.name for dialect in DIALECTS.values()] == ["chat", "completions", "responses", "messages"]
    assert len(b"event: response.incomplete") == LONGEST_FRAME


LIMITS: list[tuple[Dialect, dict[str, Any], int | None]] = [
    (CHAT, {}, None),
    (CHAT, {"max_tokens": 6}, 6),
    (CHAT, {"max_tokens": 6, "max_completion_tokens": 7}, 7),
    (CHAT, {"max_tokens": 6, "max_completion_tokens": None}, 6),
    (CHAT, {"max_tokens": "6"}, 6),
    (CHAT, {"max_tokens": 6.0}, 6),
    (CHAT, {"max_tokens": [6]}, None),
    (CHAT, {"max_tokens": -1}, None),
    (CHAT, {"max_tokens": 10**30}, None),
    (CHAT, {"max_tokens": float("inf")}, None),
    (COMPLETIONS, {}, 16),
    (COMPLETIONS, {"max_tokens": None}, None),
    (COMPLETIONS, {"max_tokens": 3}, 3),
    (RESPONSES, {}, None),
    (RESPONSES, {"max_output_tokens": 5}, 5),
    (MESSAGES, {"max_tokens": 8}, 8),
]


@pytest.mark.parametrize(("dialect", "asked", "limit"), LIMITS)
def test_the_clients_own_limit_is_read(dialect: Dialect, asked: dict[str, Any], limit: int | None) -> None:
    assert dialect.asked(asked).token_limit == limit


@pytest.mark.parametrize(("dialect", "name", "message"), STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n: heartbeat\n"], ids=["lf", "crlf", "comments"])
def test_a_real_stream_is_read(dialect: Dialect, name: str, message: dict[str, Any], end: bytes) -> None:
    frames = sent(name).replace(b"\n\n", end * 2 if b":" not in end else end + b"\n").replace(b"\ndata", end + b"data")
    assert dialect.read(b"{}", frames, True).output == (message,)
    assert dialect.issued(frames, True).tool_call_ids == TOOL_CALLS


@pytest.mark.parametrize(("dialect", "name", "message"), STREAMS.values(), ids=STREAMS.keys())
def test_a_cut_stream_is_read_as_far_as_it_came(dialect: Dialect, name: str, message: dict[str, Any]) -> None:
    frames = sent(name)
    for at in range(0, len(frames), 7):
        for found in dialect.read(frames[:at], frames[:at], True).output:
            for key in ("reasoning", "content"):
                assert message[key].startswith(found.get(key, ""))
            calls = found.get("tool_calls", [])
            assert [call["id"] for call in calls] == list(TOOL_CALLS)[: len(calls)]


@pytest.mark.parametrize(("dialect", "name", "message"), STREAMS.values(), ids=STREAMS.keys())
def test_how_a_stream_ends(dialect: Dialect, name: str, message: dict[str, Any]) -> None:
    lines = sent(name).split(b"\n")
    assert [line for line in lines if line.startswith(dialect.last_frames)] == [
        {"chat": b"data: [DONE]", "responses": b"event: response.completed", "messages": b"event: message_stop"}[
            dialect.name
        ]
    ]
    assert not any(line.startswith(dialect.error_frames) for line in lines)


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES], ids=["chat", "messages"])
def test_a_stream_that_breaks_off_is_read_as_far_as_it_came(dialect: Dialect) -> None:
    frames = sent(f"{dialect.name}_error.sse")
    lines = frames.split(b"\n")
    assert sum(line.startswith(dialect.error_frames) for line in lines) == 1
    assert any(line.startswith(dialect.last_frames) for line in lines)
    assert dialect.read(b"{}", frames, True).output == (
        {"role": "assistant", "reasoning": "They ask for größe 日本.", "content": "I look it up."},
    )


def test_a_call_is_read_by_its_dialect_and_by_what_came_whatever_was_asked_for() -> None:
    frames, plain = sent("responses.sse"), sent("responses.json")
    for response in (frames, plain, b"  \n" + plain):
        assert read_call(by_path(response, RESPONSES), b"{}", response).output == (answer(),)
    assert RESPONSES.issued(plain, False) == RESPONSES.issued(frames, True) == Issued("resp_1", TOOL_CALLS)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "error",
    [
        b'{"error":{"message":"no","type":"NotFoundError","param":"model","code":404}}',
        b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}',
        b"<html>502</html>",
        b"",
    ],
    ids=["openai", "anthropic", "html", "nothing"],
)
def test_an_error_is_no_answer(dialect: Dialect, error: bytes) -> None:
    assert dialect.read(b"{}", error, is_stream(error)).output == ()
    assert dialect.issued(error, is_stream(error)) == Issued()


PART = "x" * 200

LONG: dict[str, tuple[Dialect, Any, Any]] = {
    "chat": (CHAT, {}, {"choices": [{"index": 0, "delta": {"content": PART}}]}),
    "completions": (COMPLETIONS, {}, {"choices": [{"index": 0, "text": PART}]}),
    "responses": (
        RESPONSES,
        {"type": "response.output_item.added", "item": {"type": "message", "id": "m"}},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": PART},
    ),
    "messages": (
        MESSAGES,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": PART}},
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("dialect", "begin", "delta"), LONG.values(), ids=LONG.keys())
def test_a_long_stream_costs_no_more_for_each_frame(dialect: Dialect, begin: Any, delta: Any) -> None:
    """Were a text joined anew with each frame, this copied hundreds of gigabytes."""
    times = 50_000
    frames = stream(begin) + stream(delta) * times
    assert [message["content"] for message in dialect.read(b"{}", frames, True).output] == [PART * times]


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_NAMES = (
    "type role content text id index item item_id output output_index content_index summary_index delta partial_json"
    " name arguments input call_id tool_call_id tool_use_id tool_calls choices message messages system instructions"
    " prompt tools reasoning thinking summary source url content_block response function custom metadata n echo"
    " previous_response_id image_url refusal input_schema parameters"
)
_KINDS = (
    "text image thinking tool_use tool_result message reasoning function_call custom_tool_call function_call_output"
    " web_search_call input_text output_text input_image refusal text_delta thinking_delta input_json_delta"
    " message_start content_block_start content_block_delta response.created response.completed"
    " response.output_item.added response.output_item.done response.output_text.delta response.refusal.delta"
    " response.function_call_arguments.delta response.reasoning_summary_text.delta assistant user system"
)
names, kinds = st.sampled_from(_NAMES.split()), st.sampled_from(_KINDS.split())
indexes = st.integers(-1, 2)
document: st.SearchStrategy[Any] = st.recursive(
    kinds | indexes | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=6),
    max_leaves=25,
)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@given(documents=st.lists(st.dictionaries(names, document, max_size=6) | document, max_size=5))
def test_no_document_stops_the_reading(dialect: Dialect, documents: list[Any]) -> None:
    frames = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)
    read_anything(dialect, b"{}", frames, streamed=True)
    for one in documents:
        body = json.dumps(one).encode()
        read_anything(dialect, body, body, streamed=False)
        dialect.continued(one)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@given(data=st.binary(max_size=200))
def test_no_bytes_stop_the_reading(dialect: Dialect, data: bytes) -> None:
    for streamed in (False, True):
        read_anything(dialect, data, b"data: " + data, streamed=streamed)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("key", ["messages", "prompt", "input", "output", "content", "choices", "tools", "system"])
@pytest.mark.parametrize("depth", [400, 900, 100_000])
def test_deep_nesting_stops_nothing(dialect: Dialect, key: str, depth: int) -> None:
    for inner in (b"[" * depth + b"]" * depth, b'[{"type":"tool_use","input":' + b"[" * depth + b"]" * depth + b"}]"):
        data = b'{"%b":%b}' % (key.encode(), inner)
        read_anything(dialect, data, data, streamed=False)
        read_anything(dialect, data, b"data: " + data, streamed=True)


def read_anything(dialect: Dialect, request: bytes, response: bytes, *, streamed: bool) -> None:
    reading = dialect.read(request, response, streamed)
    assert dumps([reading.messages, reading.output, reading.tools])
    assert all(isinstance(message, dict) for message in (*reading.messages, *reading.output))
    issued = dialect.issued(response, streamed)
    assert all(isinstance(name, str) for name in (*issued.tool_call_ids, issued.response_id or ""))
