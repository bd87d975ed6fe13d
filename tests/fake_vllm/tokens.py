"""The fake's tokenizer: a token is a byte of the text, and two marks open and close a message.

So a conversation that continues has the ids of the earlier one as its beginning, as with a real chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

OPEN = 256
CLOSE = 257
"""Ends a message; the last id of an answer that was not cut off."""


def encode(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))


def decode(ids: Sequence[int]) -> str:
    """The text of ``ids``; marks and a character that was cut off are left out."""
    return bytes(i for i in ids if i < OPEN).decode("utf-8", "ignore")


def prompt(messages: Sequence[dict[str, Any]]) -> list[int]:
    """The ids of a conversation, with the opening of the assistant's answer."""
    ids: list[int] = []
    for message in messages:
        ids += [OPEN, *encode(f"{message.get('role')}\n{text(message)}"), CLOSE]
    return [*ids, OPEN, *encode("assistant\n")]


def text(message: dict[str, Any]) -> str:
    """What a message says: its content (text parts joined), or its tool calls."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    if content:
        return str(content)
    calls = message.get("tool_calls") or []
    return "".join(call_text(call["function"]["name"], call["function"]["arguments"]) for call in calls)


def call_text(name: str, arguments: str) -> str:
    """A tool call as the fake model writes it."""
    return f"<{name}>{arguments}</{name}>"
