"""Transcripts, made comparable: ids, times and the base URL are the only things in which two equal runs may differ."""

from __future__ import annotations

import re
from typing import Any

_ID = re.compile(
    r"\b(?:chatcmpl-tool|chatcmpl|cmpl|embd|resp|msg|call|fc|rs|toolu|message)[-_][0-9a-f-]{8,}\b"
    r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"
)
_BASE_URL = re.compile(r"http://127\.0\.0\.1:\d+(/scenario/[^/]+)?(/session/[^/]+)?/v1/?")
_TIMES = frozenset({"created", "created_at", "completed_at", "timestamp"})


def canonical(transcript: Any) -> Any:
    """``transcript`` with every id replaced by its number in the order of appearance, every time by 0."""
    return _canonical(transcript, {})


def _canonical(value: Any, numbers: dict[str, str]) -> Any:
    match value:
        case dict():
            return {name: 0 if name in _TIMES else _canonical(its, numbers) for name, its in value.items()}
        case list():
            return [_canonical(one, numbers) for one in value]
        case str():
            value = _BASE_URL.sub("base-url", value)
            return _ID.sub(lambda found: numbers.setdefault(found[0], f"id-{len(numbers) + 1}"), value)
    return value
