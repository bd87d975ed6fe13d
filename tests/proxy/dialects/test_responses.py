"""What is read in responses: the items of a turn as one message, alike in the answer and in the next request."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.dialects.responses import Responses
from proxy.dialects.types import Continued, Issued
from storage.calls import Message
from tests.proxy.dialects.sent import TOOL_CALLS, answer, sent, stream

RESPONSES = Responses()


def conversation(given: Any, **request: Any) -> list[Message]:
    return list(RESPONSES.read(orjson.dumps({"input": given, **request}), b"", False).messages)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def output_text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": text, **fields}


def output(value: Any, call: str = "c", kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call, "output": value}


def tool(content: Any, call: str = "c") -> Message:
    return {"role": "tool", "tool_call_id": call, "content": content}


MESSAGE = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
CALL = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"}
SHOWN_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM = {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"}
SEARCH = {"type": "web_search_call", "status": "completed", "action": {"query": "q"}}

READ: dict[str, tuple[Any, list[Message]]] = {
    "a text": ("hi", [user("hi")]),
    "a message": ([user("hi")], [user("hi")]),
    "a message of parts": ([user([{"type": "input_text", "text": "hi"}])], [user("hi")]),
    "a developer's message": ([{"role": "developer", "content": "x"}], [{"role": "developer", "content": "x"}]),
    "an image": (
        [user([{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "u", "detail": "auto"}])],
        [user([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}])],
    ),
    "an answer as text": ([said("yes")], [said("yes")]),
    "an answer as item": ([{**MESSAGE, "content": [output_text("yes", annotations=[], logprobs=None)]}], [said("yes")]),
    "a refusal": (
        [{**MESSAGE, "content": [{"type": "refusal", "refusal": "no"}]}],
        [{"role": "assistant", "refusal": "no"}],
    ),
    "two texts": (
        [{**MESSAGE, "content": [output_text("a"), output_text("b")]}],
        [said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
    ),
    "a call and its result": (
        [user("hi"), CALL, output("3")],
        [user("hi"), {"role": "assistant", "tool_calls": [SHOWN_CALL]}, tool("3")],
    ),
    "two calls, two results, an answer": (
        [CALL, {**CALL, "call_id": "d"}, output("3"), output([{"type": "input_text", "text": "4"}], "d"), said("34")],
        [
            {"role": "assistant", "tool_calls": [SHOWN_CALL, {**SHOWN_CALL, "id": "d"}]},
            tool("3"),
            tool("4", "d"),
            said("34"),
        ],
    ),
    "a tool in a namespace": (
        [{**CALL, "namespace": "disk"}],
        [
            {
                "role": "assistant",
                "tool_calls": [{**SHOWN_CALL, "function": {"name": "f", "arguments": "{}", "namespace": "disk"}}],
            }
        ],
    ),
    "a custom tool": (
        [CUSTOM, output("a b", kind="custom_tool_call_output")],
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "run", "input": "ls"}}],
            },
            tool("a b"),
        ],
    ),
    "a summary of reasoning": (
        [{"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}, said("yes")],
        [{"role": "assistant", "reasoning": "hm", "content": "yes"}],
    ),
    "a server's tool": ([{**SEARCH, "id": "w"}, said("yes")], [said([SEARCH, {"type": "text", "text": "yes"}])]),
    "an approval": (
        [{"type": "mcp_approval_response", "approve": True}],
        [tool([{"type": "mcp_approval_response", "approve": True}]) | {"tool_call_id": None}],
    ),
}


@pytest.mark.parametrize(("given", "shown"), READ.values(), ids=READ.keys())
def test_items_become_chat_messages(given: Any, shown: list[Message]) -> None:
    assert conversation(given) == shown


def test_the_instructions_come_first() -> None:
    assert conversation("hi", instructions="Be brief.") == [{"role": "system", "content": "Be brief."}, user("hi")]


def test_the_next_request_carries_the_answer_back_in_the_same_form() -> None:
    items = orjson.loads(sent("responses.json"))["output"]
    carried = conversation([user("hi"), *items, output("3", TOOL_CALLS[0]), output("4", TOOL_CALLS[1])])
    assert carried == [user("hi"), answer(), tool("3", TOOL_CALLS[0]), tool("4", TOOL_CALLS[1])]
    # Clients that build the items themselves leave ids, status and annotations out.
    bare = [{k: v for k, v in item.items() if k not in ("id", "status", "summary")} for item in items]
    assert conversation(bare) == [answer()]
    assert RESPONSES.read(b"{}", sent("responses.sse"), True).output == (answer(),)


def test_a_stream_without_its_last_frame_is_put_together() -> None:
    frames = sent("responses.sse").split(b"event: response.completed")[0]
    assert RESPONSES.read(b"{}", frames, True).output == (answer(),)
    assert RESPONSES.issued(frames, True) == Issued("resp_1", TOOL_CALLS)


@pytest.mark.parametrize(
    ("status", "output"),
    [("completed", [{"role": "assistant", "content": ""}]), ("queued", []), ("in_progress", [])],
)
def test_an_empty_answer_is_one_and_a_coming_one_is_none(status: str, output: list[Message]) -> None:
    document = {"id": "resp_1", "status": status, "output": []}
    assert list(RESPONSES.read(b"{}", orjson.dumps(document), False).output) == output
    frames = stream(
        {"type": "response.created", "response": {**document, "status": "in_progress"}},
        *[{"type": "response.completed", "response": document} for _ in output],
    )
    assert list(RESPONSES.read(b"{}", frames, True).output) == output


def test_deltas_belong_together_by_index_and_by_id_where_an_index_repeats() -> None:
    def added(name: str) -> dict[str, Any]:
        item = {"type": "function_call", "id": name, "call_id": f"call_{name}", "name": name, "arguments": ""}
        return {"type": "response.output_item.added", "output_index": 0, "item": item}

    def delta(name: str, text: str) -> dict[str, Any]:
        kind = "response.function_call_arguments.delta"
        return {"type": kind, "output_index": 0, "item_id": name, "delta": text}

    frames = stream(added("a"), added("b"), delta("a", "1"), delta("b", "2"), delta("a", "1"), delta("b", "2"))
    [message] = RESPONSES.read(b"{}", frames, True).output
    assert [(call["id"], call["function"]["arguments"]) for call in message["tool_calls"]] == [
        ("call_a", "11"),
        ("call_b", "22"),
    ]


def test_tools() -> None:
    schema = {"type": "object"}
    mine: dict[str, Any] = {"type": "function", "name": "f", "description": None, "parameters": schema, "strict": True}
    tools = RESPONSES.read(orjson.dumps({"tools": [mine, {"type": "web_search"}]}), b"", False).tools
    assert tools == (
        {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}},
        {"type": "web_search"},
    )


def test_what_a_request_continues() -> None:
    request = {"previous_response_id": "resp_1", "input": [output("3"), user("and?"), output("4", "d")]}
    assert RESPONSES.continued(request) == Continued("resp_1", ("c", "d"))
    reading = RESPONSES.read(orjson.dumps(request), sent("responses.json"), False)
    assert (reading.continues, reading.response_id) == ("resp_1", "resp_1")
    assert RESPONSES.continued({"input": "hi"}) == Continued()
