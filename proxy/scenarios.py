"""The scenario of a call that names none: what it was asked to do, without what differs from run to run."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from proxy.conversations import brief
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

_DIGIT = re.compile(r"[0-9]")
"""Whatever varies has one."""
_LONGEST_TEXT = 100_000
"""Characters; what is longer is data, and stands as it is."""
_DEPTH = 50
"""Of a tool's schema; what lies deeper stands as it is."""
_SHORT_TEXT = 300
_REMEMBERED = 2000
_OPENING = ("system", "developer")


class Scenarios:
    """Scenarios of calls. What was digested last is remembered, since an agent opens all its calls alike."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, bytes] = OrderedDict()
        """Of a text or an opening as it came: what it is without what varies."""

    def of(self, reading: Reading) -> str:
        """The same for all calls that share system prompt, tools and first user message, but for dates and numbers."""
        opening = _opening(reading)
        known = dumps([*brief(opening[:2], 5), *opening[2:]])
        digest = self._remembered(known, lambda: dumps(self._clean(opening, _DEPTH), sort_keys=True))
        return f"auto-{digest[:6].hex()}"

    def _clean(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._clean_text(value)
        if isinstance(value, dict) and depth:
            return {name: self._clean(inner, depth - 1) for name, inner in value.items()}
        if isinstance(value, list | tuple) and depth:
            return [self._clean(inner, depth - 1) for inner in value]
        return value

    def _clean_text(self, text: str) -> str:
        if len(text) > _LONGEST_TEXT or text.startswith("data:") or not _DIGIT.search(text):
            return text
        if len(text) < _SHORT_TEXT:
            return _VARIABLE.sub("#", text)
        # Tasks differ where system prompts do not.
        return self._remembered(
            text.encode("utf-8", "replace"), lambda: _VARIABLE.sub("#", text).encode("utf-8", "replace")
        ).hex()

    def _remembered(self, given: bytes, clean: Callable[[], bytes]) -> bytes:
        """The digest of what ``clean`` makes of ``given``."""
        key = _digest(given)
        found = self._digests.get(key)
        if found is None:
            found = self._digests[key] = _digest(clean())
            if len(self._digests) > _REMEMBERED:
                self._digests.popitem(last=False)
        self._digests.move_to_end(key)
        return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _opening(reading: Reading) -> list[Any]:
    """The system prompts ahead of the first user message, that message, and the tools."""
    said: list[Any] = []
    for message in reading.messages:
        if message.get("role") in _OPENING:
            said.append(message.get("content"))
        elif message.get("role") == "user":
            return [said, message.get("content"), reading.tools]
    return [said, None, reading.tools]
