"""Answers of a real vLLM in a form in which two to the same request are equal: deltas joined, ids and times left out.

Where its outputs merge depends on time: how many frames carry a text says nothing (vLLM differs from itself there).
"""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]

_CHANCE = frozenset(
    {"id", "created", "created_at", "completed_at", "item_id", "call_id", "sequence_number", "signature"}
)
_TEXTS = frozenset({"content", "text", "reasoning", "reasoning_content", "arguments", "refusal"})


def joined(body: bytes, *, stream: bool) -> Any:
    """The body of an answer with status 200."""
    if not stream:
        return _fixed(json.loads(body))
    frames = [_frame(text) for text in body.decode().split("\n\n")[:-1]]
    documents = [document for _, document in frames]
    if any(isinstance(document, dict) and "choices" in document for document in documents):
        return _choices(documents)
    return _events(frames)


def _frame(text: str) -> tuple[str, Any]:
    """What stands before a frame's data, and the data."""
    head, _, data = f"\n{text}".partition("\ndata: ")
    return head, data if data == "[DONE]" else _fixed(json.loads(data))


def _fixed(value: Any) -> Any:
    """The document as text has it, key by key; what is by chance only by its type."""
    if isinstance(value, dict):
        return {k: type(v).__name__ if k in _CHANCE else _fixed(v) for k, v in value.items()}
    return [_fixed(one) for one in value] if isinstance(value, list) else value


def _choices(documents: list[Any]) -> Json:
    """A stream of chunks: each choice, the last usage, and what stands around them, once where it repeats."""
    choices: dict[int, Json] = {}
    usage, around = None, []
    for document in documents:
        rest = document
        if isinstance(document, dict):
            for choice in document["choices"]:
                _fold(choices.setdefault(choice["index"], {}), choice)
            usage = document.get("usage") or usage
            rest = {key: value for key, value in document.items() if key not in ("choices", "usage")}
        if rest not in around:
            around.append(rest)
    return {"choices": choices, "usage": usage, "around": around}


def _fold(total: Json, piece: Json) -> None:
    """Add a chunk to those before it."""
    for key, value in piece.items():
        before = total.get(key)
        if key == "tool_calls":
            calls = total.setdefault(key, {})
            for call in value or ():
                _fold(calls.setdefault(call["index"], {}), call)
        elif isinstance(value, dict):
            if not isinstance(before, dict):
                total[key] = {}
            _fold(total[key], value)
        elif isinstance(before, list) and isinstance(value, list):
            total[key] = [*before, *value]
        elif isinstance(before, str) and isinstance(value, str) and key in _TEXTS:
            total[key] = f"{before}{value}"
        elif value is not None or key not in total:
            total[key] = value


def _events(frames: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """A stream of events: as they came, those that carry pieces of one text joined."""
    found: list[tuple[str, Any]] = []
    for head, document in frames:
        if found and (whole := _continued(found[-1], (head, document))) is not None:
            found[-1] = (head, whole)
        else:
            found.append((head, document))
    return found


def _continued(earlier: tuple[str, Any], later: tuple[str, Any]) -> Json | None:
    """The event of both texts; None where they are no pieces of one."""
    (head, one), (other_head, other) = earlier, later
    if head != other_head or not isinstance(one, dict) or "delta" not in one or one.keys() != other.keys():
        return None
    if isinstance(one["delta"], str):  # the Responses API's
        pieces = {"delta": one["delta"] + other["delta"]}
        lists = {key: one[key] + other[key] for key in one if isinstance(one[key], list)}
    elif "type" in one["delta"] and one["delta"]["type"] == other["delta"].get("type"):
        text = {k: v + other["delta"][k] for k, v in one["delta"].items() if k != "type" and isinstance(v, str)}
        pieces, lists = {"delta": {**one["delta"], **text}}, {}
    else:
        return None
    same = {key: value for key, value in one.items() if key not in (*pieces, *lists)}
    if any(other[key] != value for key, value in same.items()):
        return None
    return {**one, **pieces, **lists}
