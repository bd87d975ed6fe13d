"""The normal form of messages: chat messages, alike whether a response gave them or a later request carries them.

What clients add, drop or move between two requests is left out of it (nulls, empty lists, cache marks); a content
that is one plain text is a string.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from proxy.dialects.documents import Document
from storage.calls import Message
from storage.text import dumps

_MARKS = frozenset({"cache_control", "logprobs"})
"""Fields of a part that say nothing about the conversation, and come and go."""

_BARE = frozenset({"type", "text"})


class Pieces(list[str]):
    """A text that came in pieces; joined once, at the end."""


def joined(value: Any, depth: int = 4) -> Any:
    """``value`` with the pieces in it joined, as deep as they can lie: message, tool calls, call, function, field."""
    if isinstance(value, Pieces):
        return "".join(value)
    if depth and isinstance(value, dict):
        return {name: joined(inner, depth - 1) for name, inner in value.items()}
    if depth and isinstance(value, list):
        return [joined(inner, depth - 1) for inner in value]
    return value


def said(value: Any) -> bool:
    """Whether a field says anything."""
    return value is not None and value != []


def text(value: str) -> Document:
    return {"type": "text", "text": value}


def content(parts: list[Any]) -> str | list[Any]:
    """A message's content from its parts: the text itself where there is nothing else."""
    kept = [
        {name: value for name, value in part.items() if said(value) and name not in _MARKS}
        if isinstance(part, dict)
        else part
        for part in parts
    ]
    if not kept:
        return ""
    if len(kept) == 1 and isinstance(kept[0], dict) and kept[0].keys() == _BARE and isinstance(kept[0]["text"], str):
        return kept[0]["text"]
    return kept


def function_call(call_id: Any, name: Any, arguments: Any, **others: Any) -> Document:
    """A tool call of a chat message. Arguments that are no text are shown as JSON."""
    written = arguments if isinstance(arguments, str) else dumps(arguments).decode()
    function = {"name": name, "arguments": written} | {key: value for key, value in others.items() if said(value)}
    return {"id": call_id, "type": "function", "function": function}


def function_tool(tool: Document, parameters: str) -> Document:
    """A chat tool from a flat one, whose schema stands under the name ``parameters``."""
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get(parameters),
        "strict": tool.get("strict"),
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if said(value)}}


@dataclass(slots=True)
class Answer:
    """What the model said in one turn, gathered from items or blocks."""

    parts: list[Any] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    calls: list[Document] = field(default_factory=list)

    def message(self) -> Message:
        message: Message = {"role": "assistant"}
        if self.reasoning:
            message["reasoning"] = "\n".join(self.reasoning)
        said_so = content(self.parts)
        if said_so or not (self.calls or self.refusals):
            message["content"] = said_so
        if self.refusals:
            message["refusal"] = "\n".join(self.refusals)
        if self.calls:
            message["tool_calls"] = self.calls
        return message
