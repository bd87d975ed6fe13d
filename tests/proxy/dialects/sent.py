"""Responses as vLLM sends them: the same answer in every dialect (see ``frames/README.md``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

_FRAMES = Path(__file__).parent / "frames"

REASONING = "They ask for größe 日本."
TEXT = "I look it up."
TOOL_CALLS = ("chatcmpl-tool-a1", "chatcmpl-tool-b2")


def sent(name: str) -> bytes:
    return (_FRAMES / name).read_bytes()


def answer(first: str = '{"city": "Köln"}', second: str = '{"zone": 1.0}') -> dict[str, Any]:
    """The answer in its normal form, with the arguments of its two tool calls."""
    called = zip(TOOL_CALLS, ("weather", "time"), (first, second), strict=True)
    return {
        "role": "assistant",
        "reasoning": REASONING,
        "content": TEXT,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in called
        ],
    }


def stream(*documents: Any, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + orjson.dumps(document) + end for document in documents)
