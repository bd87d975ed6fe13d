"""Tags: which session and scenario a call belongs to, as its headers say."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.asgi import Headers
from proxy.errors import BadTag

MAX_TAG = 256

_SESSION = b"x-session-id"
_SCENARIO = b"x-scenario-id"
_AGENT = b"x-agent"
_END = b"x-session-end"
_SPLIT = b"x-split"

TAG_HEADERS = frozenset({_SESSION, _SCENARIO, _AGENT, _END, _SPLIT})
"""Taken off before vLLM sees the request."""


@dataclass(frozen=True, slots=True)
class Tags:
    session: str | None
    scenario: str | None
    agent: str | None
    ends: bool
    """The session closes when this call ends."""
    split: str


def read_tags(headers: Headers) -> Tags:
    """The tags of a request. Raises `BadTag` with the reason for one that cannot be used."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name in TAG_HEADERS:
            if name in found:
                raise BadTag(f"{_written(name)} is given twice")
            found[name] = _text(name, value)
    split = found.get(_SPLIT, "train")
    if split not in ("train", "eval"):
        raise BadTag(f"X-Split is {split!r}; it can be train or eval")
    ends = found.get(_END, "false").lower()
    if ends not in ("true", "false"):
        raise BadTag(f"X-Session-End is {ends!r}; it can be true or false")
    return Tags(found.get(_SESSION), found.get(_SCENARIO), found.get(_AGENT), ends == "true", split)


def check_tag(name: str, text: str) -> str:
    """``text`` itself when it is 1 to 256 printable characters; else `BadTag`."""
    if not 1 <= len(text) <= MAX_TAG:
        raise BadTag(f"{name} has {len(text)} characters; it can have 1 to {MAX_TAG}")
    if not text.isprintable():
        raise BadTag(f"{name} holds a character that cannot be printed")
    return text


def _text(name: bytes, value: bytes) -> str:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise BadTag(f"{_written(name)} is not UTF-8") from None
    return check_tag(_written(name), text)


def _written(name: bytes) -> str:
    return name.decode().title()
