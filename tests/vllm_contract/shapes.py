"""The shape of an answer: its fields, their types and the words that are part of the protocol, without its text.

    {"id":"chatcmpl-…","choices":[{"index":int,"finish_reason":"length","logprobs":null}]}

Of a list, every shape of its members once. Of a stream, its frames, runs of one shape as one: how many tokens go into a
frame is a matter of timing. Frames of several choices stand choice by choice, since choices run side by side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

_WORDS = {"type", "object", "role", "finish_reason", "stop_reason", "status", "owned_by", "param", "code", "reason"}
_WORDS |= {"finish", "tool_choice", "truncation", "service_tier"}
"""Fields whose values are the protocol's."""
_IDS = {"id", "item_id", "call_id", "tool_use_id"}
_PREFIX = re.compile(r"chatcmpl-tool-|[a-z]+[-_]|")
_MAPS = {"top_logprobs", "prompt_logprobs"}
"""Fields whose objects have tokens as keys."""
_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}

Shape = dict[str, Any]


def shape(value: Any, name: str = "") -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        if name in _MAPS and "logprob" not in value:
            return "{" + " | ".join(unique(f"*:{shape(one)}" for one in value.values())) + "}"
        return "{" + ",".join(f"{key}:{shape(value[key], key)}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + " | ".join(unique(shape(one, name) for one in value)) + "]"
    if name in _WORDS and not isinstance(value, float):
        return json.dumps(value)
    if name in _IDS and isinstance(value, str):
        found = _PREFIX.match(value)
        return json.dumps((found[0] if found else "") + "…", ensure_ascii=False)
    return _TYPES[type(value)]


def unique(shapes: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(shapes))


def answer(status: int, headers: Mapping[str, str], body: bytes) -> Shape:
    """The shape of a response, as it is kept."""
    return {"status": status, "headers": _headers(headers, body), "body": _body(headers.get("content-type", ""), body)}


def _headers(headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    """All of them; of a date and a length that they are there and right."""
    found = {name: headers[name] for name in sorted(headers)}
    if "location" in found:
        found["location"] = urlsplit(found["location"]).path
    if "date" in found:
        found["date"] = "…"
    if "content-length" in found:
        right = int(found["content-length"]) == len(body)
        found["content-length"] = "the body's" if right else "another"
    return found


def _body(content_type: str, body: bytes) -> list[str]:
    if content_type.startswith("text/event-stream"):
        return frames(body)
    if content_type != "application/json" or not body:
        return [f"{'some' if body else 'no'} bytes"]
    return [shape(json.loads(body))]


def frames(stream: bytes) -> list[str]:
    """The shapes of a stream's frames."""
    *pieces, rest = stream.decode().split("\n\n")
    assert rest == "", f"a stream ends with a frame: {rest!r}"
    kept = [(_choice(frame), frame_shape(frame)) for frame in pieces]
    kept.sort(key=lambda pair: pair[0])
    return [key[1] for key, _ in groupby(kept)]


def frame_shape(frame: str) -> str:
    lines = []
    for line in frame.split("\n"):
        name, found, value = line.partition(": ")
        told = shape(json.loads(value)) if name == "data" and value != "[DONE]" else value
        lines.append(f"{name}{found}{told}")
    return "; ".join(lines)


_BEHIND = 2**31


def _choice(frame: str) -> int:
    """The choice that a frame belongs to; those of no choice stand behind all, as they came."""
    kind, _, value = frame.partition(": ")
    if kind != "data" or value == "[DONE]":
        return _BEHIND if value == "[DONE]" else 0
    choices = json.loads(value).get("choices")
    if choices is None:
        return 0
    return int(choices[0]["index"]) if choices else _BEHIND
