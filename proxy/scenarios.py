"""The scenario of a call that names none: what it was asked to do, without what differs from run to run."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from typing import Any

from storage.calls import Reading
from storage.text import dumps

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY_NAME = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,?\s+)?"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]m)?(?:\s?(?:z|utc|gmt|[+-]\d{2}:?\d{2}))?"
_DATE = (
    rf"{_DAY_NAME}(?:\d{{4}}-\d{{2}}-\d{{2}}|\d{{4}}/\d{{1,2}}/\d{{1,2}}|\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH},?\s+\d{{4}}|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}})"
)
_VARIABLE = re.compile(
    "|".join(
        (
            r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
            r"\b(?=[a-f]*\d)[0-9a-f]{16,}\b",
            rf"\b{_DATE}(?:(?:\s*t|,|\sat|\s)?\s*{_TIME})?",
            r"\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?(?:\s?[ap]m)?",
            r"\d{7,}(?:\.\d+)?",
        )
    ),
    re.IGNORECASE,
)
"""UUIDs and other long hexadecimal numbers, dates with or without a time, times with seconds, long numbers."""

_LONGEST_TEXT = 100_000
"""Characters; what is longer is data, and stands as it is."""
_DEPTH = 50
"""Of a tool's schema; what lies deeper stands as it is."""
_REMEMBERED = 1000
_OPENING = ("system", "developer")


class Scenarios:
    """Scenarios of calls. Those of the newest openings are remembered: an agent opens all its calls alike."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def of(self, reading: Reading) -> str:
        """The same for all calls that share system prompt, tools and first user message, but for dates and numbers."""
        opening = _opening(reading)
        key = hashlib.blake2b(dumps(opening), digest_size=16).digest()
        if key not in self._known:
            clean = hashlib.blake2b(dumps(_clean(opening), sort_keys=True), digest_size=6)
            self._known[key] = f"auto-{clean.hexdigest()}"
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]


def _opening(reading: Reading) -> list[Any]:
    """The system prompts ahead of the first user message, that message, and the tools."""
    said: list[Any] = []
    for message in reading.messages:
        if message.get("role") in _OPENING:
            said.append(message.get("content"))
        elif message.get("role") == "user":
            return [said, message.get("content"), reading.tools]
    return [said, None, reading.tools]


def _clean(value: Any, depth: int = _DEPTH) -> Any:
    if isinstance(value, str):
        data = len(value) > _LONGEST_TEXT or value.startswith("data:")
        return value if data else _VARIABLE.sub("#", value)
    if isinstance(value, dict):
        return {name: _clean(inner, depth - 1) for name, inner in value.items()} if depth else value
    if isinstance(value, list | tuple):
        return [_clean(inner, depth - 1) for inner in value] if depth else value
    return value
