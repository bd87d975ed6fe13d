"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proxy.dialects.documents import events, parse
from storage.calls import Message, Reading

_JOINED = ("content", "reasoning", "reasoning_content", "refusal")
"""Fields of a delta that continue what came before; the others stand as they came."""


class ChatCompletions:
    name = "chat"
    path = "/v1/chat/completions"
    last_frame = b"data: [DONE]"
    error_frame = b'data: {"error"'

    def read(self, request: bytes, response: bytes, streamed: bool) -> Reading:
        asked = parse(request)
        messages = tuple(m for m in _list(asked, "messages") if isinstance(m, dict))
        tools = tuple(_list(asked, "tools"))
        answers = _streamed(response) if streamed else _plain(response)
        return Reading(messages, tuple(answers), tools)


def _plain(response: bytes) -> Iterator[Message]:
    for choice in _list(parse(response), "choices"):
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict):
            yield {name: value for name, value in message.items() if value not in (None, [])}


def _streamed(response: bytes) -> list[Message]:
    """The messages that a client puts together from the frames, by choice index."""
    choices: dict[int, Message] = {}
    for event in events(response):
        for choice in _list(event, "choices"):
            if isinstance(choice, dict) and isinstance(choice.get("delta"), dict):
                index = choice.get("index")
                message = choices.setdefault(index if isinstance(index, int) else 0, {"role": "assistant"})
                _add(message, choice["delta"])
    return [choices[index] for index in sorted(choices)]


def _add(message: Message, delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            if isinstance(value, list):
                _add_tool_calls(message.setdefault(name, []), value)
        elif name in _JOINED and isinstance(value, str) and isinstance(message.get(name, ""), str):
            message[name] = message.get(name, "") + value
        elif value not in (None, []):
            message[name] = value


def _add_tool_calls(calls: list[Any], fragments: list[Any]) -> None:
    """Fragments belong together by index, and by id where a server repeats an index."""
    for fragment in fragments:
        if not isinstance(fragment, dict):
            continue
        index, name = fragment.get("index"), fragment.get("id")
        same = [c for c in calls if c.get("index") == index and (not name or not c.get("id") or c["id"] == name)]
        if not same:
            calls.append({"index": index, "function": {"name": "", "arguments": ""}})
            same = calls[-1:]
        call = same[-1]
        for key in ("id", "type"):
            if fragment.get(key):
                call[key] = fragment[key]
        function = fragment.get("function")
        for key in ("name", "arguments"):
            if isinstance(function, dict) and isinstance(function.get(key), str):
                call["function"][key] += function[key]


def _list(document: Any, name: str) -> list[Any]:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, list) else []
