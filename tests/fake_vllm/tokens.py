"""The fake's tokenizer: a token is a byte of the text, and two marks open and close a message.

So a conversation that continues has the ids of the earlier one as its beginning, as with a real chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

OPEN = 256
CLOSE = 257
"""Ends a message; the last id of an answer that was not cut off."""
THINK, END_THINK = "<think>", "</think>"


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
    """What a message says: its content (text parts joined, others by their type), and its tool calls."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part) for part in content if isinstance(part, dict))
    calls = message.get("tool_calls") or []
    return str(content or "") + "".join(
        call_text(call["function"]["name"], call["function"]["arguments"]) for call in calls
    )


def _part(part: dict[str, Any]) -> str:
    return str(part.get("text", f"[{part.get('type')}]"))


def multimodal(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether a message holds anything but text, which ids do not show."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(isinstance(part, dict) and part.get("type", "text") != "text" for part in parts)


def call_text(name: str, arguments: str) -> str:
    """A tool call as the fake model writes it."""
    return f"<{name}>{arguments}</{name}>"


def reasoning_text(reasoning: str) -> str:
    """Reasoning as the fake model writes it."""
    return f"{THINK}{reasoning}{END_THINK}"


def apart(said: str) -> tuple[str, str]:
    """Reasoning and content of a text that the model wrote, or of its beginning."""
    if not said.startswith(THINK):
        return ("", "") if said and THINK.startswith(said) else ("", said)
    reasoning, _, content = said[len(THINK) :].partition(END_THINK)
    return reasoning, content


def string(token: int) -> str:
    """A token as logprobs show it."""
    return bytes([token]).decode("utf-8", "replace") if token < OPEN else f"<|{token}|>"
