"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proxy.dialects.documents import Document, count, events, field, objects, parse
from proxy.dialects.normal import Pieces, joined, said
from proxy.dialects.types import Continued, Issued
from storage.calls import Message, Reading

_JOINED = ("content", "reasoning", "reasoning_content", "refusal")
"""Fields of a delta that continue what came before; the others stand as they came."""

_JOINED_IN_CALLS = ("name", "arguments", "input")
"""The same, in the function (or the custom tool) of a tool call."""


class ChatCompletions:
    name = "chat"
    path = "/v1/chat/completions"
    last_frames: tuple[bytes, ...] = (b"data: [DONE]",)
    error_frames: tuple[bytes, ...] = (b'data: {"error"',)  # a [DONE] follows

    def asked(self, document: Any) -> Reading:
        messages = tuple(_normal(message) for message in objects(document, "messages"))
        tools = tuple(field(document, "tools", list) or ())
        return Reading(messages, (), tools, token_limit=count(document, "max_completion_tokens", "max_tokens"))

    def read(self, request: bytes, response: bytes, streamed: bool) -> Reading:
        return replace(self.asked(parse(request)), output=_answers(response, streamed))

    def issued(self, response: bytes, streamed: bool) -> Issued:
        if b'"tool_calls"' not in response:
            return Issued()
        calls = (call for message in _answers(response, streamed) for call in objects(message, "tool_calls"))
        return Issued(None, tuple(call["id"] for call in calls if isinstance(call.get("id"), str)))

    def continued(self, document: Any) -> Continued:
        messages = objects(document, "messages")
        return Continued(None, tuple(m["tool_call_id"] for m in messages if isinstance(m.get("tool_call_id"), str)))


def _normal(message: Message) -> Message:
    """An answer in the form in which `read` gave it; what others said stands as it came."""
    if message.get("role") != "assistant":
        return message
    normal = {name: value for name, value in message.items() if said(value)}
    if isinstance(normal.get("tool_calls"), list):
        # Clients carry a stream's answer back with the indexes of its fragments, or without.
        normal["tool_calls"] = [_without_index(call) for call in normal["tool_calls"]]
        if normal.get("content") == "":
            del normal["content"]
    return normal


def _without_index(call: Any) -> Any:
    return {name: value for name, value in call.items() if name != "index"} if isinstance(call, dict) else call


def _answers(response: bytes, streamed: bool) -> tuple[Message, ...]:
    found = _streamed(response) if streamed else _plain(response)
    return tuple(_normal({"role": "assistant"} | {name: v for name, v in m.items() if said(v)}) for m in found)


def _plain(response: bytes) -> Iterator[Message]:
    for choice in objects(parse(response), "choices"):
        message = field(choice, "message", dict)
        if message is not None:
            yield message


def _streamed(response: bytes) -> list[Message]:
    """The messages that a client puts together from the frames, by choice index."""
    choices: dict[int, _Growing] = {}
    for event in events(response):
        for choice in objects(event, "choices"):
            delta, index = choice.get("delta"), choice.get("index")
            if isinstance(delta, dict):
                index = index if isinstance(index, int) else 0
                if index not in choices:
                    choices[index] = _Growing()
                choices[index].add(delta)
    return [joined(choices[index].message) for index in sorted(choices)]


class _Growing:
    """A message that deltas add to."""

    def __init__(self) -> None:
        self.message: Message = {}
        self._newest: dict[int | None, Document] = {}
        """By the index of a tool call: the one that a fragment without id continues."""
        self._named: dict[tuple[int | None, str], Document] = {}

    def add(self, delta: Document) -> None:
        for name, value in delta.items():
            if name in _JOINED and isinstance(value, str):
                _extend(self.message, name, value)
            elif name == "tool_calls" and isinstance(value, list):
                for fragment in objects(delta, name):
                    self._add_call(fragment)
            else:
                _merge(self.message, name, value)

    def _add_call(self, fragment: Document) -> None:
        call = self._call(fragment)
        for name, value in fragment.items():
            if name != "index":
                _merge(call, name, value)

    def _call(self, fragment: Document) -> Document:
        """The tool call that a fragment belongs to: by its index, and by its id where a server repeats an index."""
        index, name = field(fragment, "index", int), field(fragment, "id", str)
        newest = self._newest.get(index)
        if name:
            call = self._named.get((index, name)) or (newest if newest is not None and not newest.get("id") else None)
        else:
            call = newest
        if call is None:
            call = {}
            if not isinstance(self.message.get("tool_calls"), list):
                self.message["tool_calls"] = []
            self.message["tool_calls"].append(call)
        self._newest[index] = call
        if name:
            self._named[index, name] = call
        return call


def _merge(document: Document, name: str, value: Any) -> None:
    """A field of a later fragment: an object (the function of a call) continues the one that is there."""
    if isinstance(value, dict) and isinstance(document.get(name, {}), dict):
        inner = document.setdefault(name, {})
        for key, part in value.items():
            if key in _JOINED_IN_CALLS and isinstance(part, str):
                _extend(inner, key, part)
            elif said(part):
                inner[key] = part
    elif said(value):
        document[name] = value


def _extend(document: Document, name: str, text: str) -> None:
    if isinstance(pieces := document.get(name), Pieces):
        pieces.append(text)
    else:
        document[name] = Pieces([text])
