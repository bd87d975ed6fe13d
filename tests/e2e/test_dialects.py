"""What the dialects read in the responses of a real vLLM: text and tool calls, plain and streamed, there and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.dialects import DIALECTS, Dialect, is_stream
from storage.calls import Message
from tests.e2e.marked_calls import Answer, Body, Server, captured

pytestmark = pytest.mark.e2e

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
QUESTION: Message = {"role": "user", "content": "Name a colour."}


@dataclass(frozen=True, slots=True)
class Asking:
    """A request in one dialect, and how it asks for a tool and carries an answer back."""

    body: Body
    tool: Body

    def back(self, path: str, answer: Any, call: str) -> Body:
        """The next request: the same, with the answer as it came and the tool's result."""
        if path == "/v1/chat/completions":
            message = answer["choices"][0]["message"]
            return {"messages": [QUESTION, message, {"role": "tool", "tool_call_id": call, "content": "done"}]}
        if path == "/v1/responses":
            result = {"type": "function_call_output", "call_id": call, "output": "done"}
            return {"input": [QUESTION, *answer["output"], result]}
        said = {"role": "assistant", "content": answer["content"]}
        result = {"type": "tool_result", "tool_use_id": call, "content": "done"}
        return {"messages": [QUESTION, said, {"role": "user", "content": [result]}]}


# Strict: vLLM holds a small model to the schema.
FUNCTION = {"name": "paint", "description": "Paints the wall.", "strict": True}

ASKING: dict[str, Asking] = {
    "/v1/chat/completions": Asking(
        {"messages": [QUESTION], "max_tokens": 64},
        {
            "tools": [{"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}],
            "tool_choice": {"type": "function", "function": {"name": "paint"}},
        },
    ),
    "/v1/completions": Asking({"prompt": QUESTION["content"], "max_tokens": 64}, {}),
    "/v1/responses": Asking(
        {"input": QUESTION["content"], "max_output_tokens": 64},
        {
            "tools": [{"type": "function", **FUNCTION, "parameters": SCHEMA}],
            "tool_choice": {"type": "function", "name": "paint"},
        },
    ),
    "/v1/messages": Asking(
        {"messages": [QUESTION], "max_tokens": 64},
        {"tools": [{**FUNCTION, "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "paint"}},
    ),
}
WITH_TOOLS = [path for path, asking in ASKING.items() if asking.tool]


async def ask(vllm: Server, path: str, body: Body, *, stream: bool) -> tuple[Answer, Message]:
    """The answer as it came, and as it is read."""
    body = {"model": "agent", "temperature": 0, "stream": stream, **body}
    answer, capture = await captured(vllm, path, body, vllm.model)
    assert capture["reason"] is None
    assert is_stream(answer.body) is stream
    if stream:
        assert_ends(DIALECTS[path], answer.body)
    reading = DIALECTS[path].read(json.dumps(body).encode(), answer.body, stream)
    assert reading.messages[0] == QUESTION
    [message] = reading.output
    assert message["role"] == "assistant"
    return answer, message


def assert_ends(dialect: Dialect, stream: bytes) -> None:
    """The frame by which the proxy knows the end of a stream comes once, as the last one; none breaks it off."""
    *earlier, last, rest = stream.split(b"\n\n")
    assert rest == b""
    assert last.startswith(dialect.last_frames)
    for line in b"\n".join(earlier).split(b"\n"):
        assert not line.startswith((*dialect.last_frames, *dialect.error_frames))


@pytest.mark.parametrize("path", ASKING)
async def test_a_text_reads_alike_plain_and_streamed(vllm: Server, path: str) -> None:
    body = ASKING[path].body
    _, plain = await ask(vllm, path, body, stream=False)
    _, streamed = await ask(vllm, path, body, stream=True)
    assert plain == streamed
    assert plain.keys() == {"role", "content"}
    assert len(plain["content"]) > 10


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", WITH_TOOLS)
async def test_a_tool_call_is_read_and_carried_back(vllm: Server, path: str, stream: bool) -> None:
    asking, dialect = ASKING[path], DIALECTS[path]
    answer, message = await ask(vllm, path, asking.body | asking.tool, stream=stream)
    [call] = message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "paint")
    assert json.loads(call["function"]["arguments"])["colour"] in ("red", "blue")
    assert dialect.issued(answer.body, stream).tool_call_ids == (call["id"],)
    if stream:
        return
    body = {**asking.body, **asking.back(path, answer.json(), call["id"])}
    assert dialect.continued(body).tool_call_ids == (call["id"],)
    assert dialect.read(json.dumps(body).encode(), b"", False).messages == (
        QUESTION,
        message,
        {"role": "tool", "tool_call_id": call["id"], "content": "done"},
    )
    await ask(vllm, path, body, stream=False)  # vLLM takes it


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_names_itself(vllm: Server, stream: bool) -> None:
    path = "/v1/responses"
    answer, _ = await ask(vllm, path, ASKING[path].body, stream=stream)
    issued = DIALECTS[path].issued(answer.body, stream)
    assert issued.response_id is not None
    assert issued.response_id.startswith("resp_")
    assert answer.body.count(issued.response_id.encode()) == (3 if stream else 1)
