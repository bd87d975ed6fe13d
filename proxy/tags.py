"""Tags: which session and scenario a call belongs to, as its headers, its URL or its body say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from proxy.asgi import Headers
from proxy.errors import BadTag
from storage.types import TaggedBy

MAX_TAG = 256

_SESSION = b"x-session-id"
_SCENARIO = b"x-scenario-id"
_AGENT = b"x-agent"
_END = b"x-session-end"
_SPLIT = b"x-split"

TAG_HEADERS = frozenset({_SESSION, _SCENARIO, _AGENT, _END, _SPLIT})
"""Taken off before vLLM sees the request."""


class TaggedUrl(Protocol):
    """What a URL says; the tags in it have been checked."""

    @property
    def session(self) -> str | None: ...

    @property
    def scenario(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Tags:
    session: str | None
    scenario: str | None
    agent: str | None
    ends: bool
    """The session closes when this call ends."""
    split: str
    session_by: TaggedBy = TaggedBy.NONE
    scenario_by: TaggedBy = TaggedBy.NONE


def read_tags(headers: Headers, url: TaggedUrl | None = None, document: Any = None) -> Tags:
    """The tags of a request whose body is ``document``; of headers, URL and body the first that has one, per field.

    Raises `BadTag` with the reason for one that cannot be used.
    """
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
    session, session_by = found.get(_SESSION), TaggedBy.HEADER
    if session is None:
        session, session_by = _weaker(url.session if url else None, document, "session_id")
    scenario, scenario_by = found.get(_SCENARIO), TaggedBy.HEADER
    if scenario is None:
        scenario, scenario_by = _weaker(url.scenario if url else None, document, "scenario_id")
    return Tags(session, scenario, found.get(_AGENT), ends == "true", split, session_by, scenario_by)


def _weaker(url: str | None, document: Any, field: str) -> tuple[str | None, TaggedBy]:
    """The tag that stands in no header."""
    if url is not None:
        return url, TaggedBy.URL
    tag = _in_body(document, field)
    return tag, TaggedBy.NONE if tag is None else TaggedBy.BODY


def _in_body(document: Any, field: str) -> str | None:
    """The tag ``metadata.<field>``. It stays in the body, since responses repeat it."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    tag = metadata.get(field) if isinstance(metadata, dict) else None
    if tag is None:
        return None
    if not isinstance(tag, str):
        raise BadTag(f"metadata.{field} is of type {_JSON_NAMES.get(type(tag), 'object')}; it must be a string")
    return check_tag(f"metadata.{field}", tag)


_JSON_NAMES: dict[type, str] = {bool: "boolean", int: "number", float: "number", list: "array"}


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
