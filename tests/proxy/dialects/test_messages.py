"""What is read in Anthropic's messages: chat messages, alike in the answer and in the request that carries it back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.dialects.messages import Messages
from proxy.dialects.types import Continued
from storage.calls import Message
from tests.proxy.dialects.sent import REASONING, TEXT, TOOL_CALLS, answer, sent, stream

MESSAGES = Messages()
ANSWER = answer('{"city":"Köln"}', '{"zone":1.0}')
BLOCKS = [
    {"type": "thinking", "thinking": REASONING, "signature": "s"},
    {"type": "text", "text": TEXT},
    {"type": "tool_use", "id": TOOL_CALLS[0], "name": "weather", "input": {"city": "Köln"}},
    {"type": "tool_use", "id": TOOL_CALLS[1], "name": "time", "input": {"zone": 1.0}},
]


def conversation(*messages: dict[str, Any], **request: Any) -> list[Message]:
    return list(MESSAGES.read(orjson.dumps({"messages": messages, **request}), b"", False).messages)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(said: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **marks}


def result(content: Any, call: str = "u", **marks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content, **marks}


def tool(content: Any, call: str = "u") -> Message:
    return {"role": "tool", "tool_call_id": call, "content": content}


CACHED = {"cache_control": {"type": "ephemeral"}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
LINK = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
SHOWN_PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
SHOWN_LINK = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}

READ: dict[str, tuple[dict[str, Any], list[Message]]] = {
    "a text": (user("hi"), [user("hi")]),
    "a text with a cache mark": (user([text("hi", **CACHED)]), [user("hi")]),
    "two texts, one marked": (user([text("a"), text("b", **CACHED)]), [user([text("a"), text("b")])]),
    "images": (user([text("see"), PNG, LINK]), [user([text("see"), SHOWN_PNG, SHOWN_LINK])]),
    "a document": (user([{"type": "document", "title": "t"}]), [user([{"type": "document", "title": "t"}])]),
    "a result, then a text": (user([result("3"), text("and?")]), [tool("3"), user("and?")]),
    "two results": (user([result([text("3")], "u"), result("4", "v")]), [tool("3", "u"), tool("4", "v")]),
    "a result with an image": (user([result([text("3"), PNG])]), [tool([text("3"), SHOWN_PNG])]),
    "a failed result": (user([result("no", is_error=True)]), [{**tool("no"), "is_error": True}]),
    "an empty result": (user([{"type": "tool_result", "tool_use_id": "u"}]), [tool("")]),
    "an answer as text": ({"role": "assistant", "content": "yes"}, [{"role": "assistant", "content": "yes"}]),
    "an answer of blocks": ({"role": "assistant", "content": BLOCKS}, [ANSWER]),
    "hidden thinking": (
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, text("yes")]},
        [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, text("yes")]}],
    ),
}


@pytest.mark.parametrize(("message", "shown"), READ.values(), ids=READ.keys())
def test_messages_become_chat_messages(message: dict[str, Any], shown: list[Message]) -> None:
    assert conversation(message) == shown


@pytest.mark.parametrize(
    "system",
    ["Be brief.", [text("Be brief.", **CACHED)], [text("x-anthropic-billing-header: cch=1"), text("Be brief.")]],
    ids=["text", "blocks", "with a client's billing header"],
)
def test_the_system_prompt_comes_first(system: Any) -> None:
    assert conversation(user("hi"), system=system) == [{"role": "system", "content": "Be brief."}, user("hi")]


def test_the_next_request_carries_the_answer_back_in_the_same_form() -> None:
    plain = orjson.dumps({"id": "msg_1", "type": "message", "role": "assistant", "content": BLOCKS})
    carried = conversation(user("hi"), {"role": "assistant", "content": BLOCKS}, user([result("3", TOOL_CALLS[0])]))
    for response, streamed in ((plain, False), (sent("messages.sse"), True)):
        assert MESSAGES.read(b"{}", response, streamed).output == (carried[1],)


@pytest.mark.parametrize("content", [[], [text("")]])
def test_an_empty_answer(content: list[Any]) -> None:
    response = orjson.dumps({"content": content})
    assert MESSAGES.read(b"{}", response, False).output == ({"role": "assistant", "content": ""},)
    start = {"type": "message_start", "message": {"content": []}}
    assert MESSAGES.read(b"{}", stream(start), True).output == ()
    frames = stream(start, {"type": "message_stop"})
    assert MESSAGES.read(b"{}", frames, True).output == ({"role": "assistant", "content": ""},)


def test_arguments_that_broke_off_stand_as_they_came() -> None:
    start = {"type": "tool_use", "id": "u", "name": "f", "input": {}}
    frames = stream(
        {"type": "content_block_start", "index": 0, "content_block": start},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": '}},
    )
    [message] = MESSAGES.read(b"{}", frames, True).output
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": '}


def test_tools() -> None:
    schema = {"type": "object"}
    mine, theirs = {"name": "f", "description": "d", "input_schema": schema}, {"type": "web_search_1", "name": "w"}
    tools = MESSAGES.read(orjson.dumps({"tools": [{**mine, **CACHED}, theirs]}), b"", False).tools
    function = {"name": "f", "description": "d", "parameters": schema}
    assert tools == ({"type": "function", "function": function}, theirs)


def test_what_a_request_continues() -> None:
    request = {"messages": [user("hi"), user([result("3", "u"), text("x"), result("4", "v")])]}
    assert MESSAGES.continued(request) == Continued(None, ("u", "v"))
