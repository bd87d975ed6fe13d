"""JSON text of whatever an agent or a model wrote: readable always, exact where JSON allows."""

from __future__ import annotations

from typing import Any

import orjson

_DEPTH = 200
_INTEGERS = 2**63


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """``value`` as JSON. What JSON cannot hold (lone surrogates, huge integers, deep nesting) is shown as text."""
    option = orjson.OPT_SORT_KEYS if sort_keys else 0
    try:
        return orjson.dumps(value, option=option)
    except TypeError:
        return orjson.dumps(_plain(value, _DEPTH), option=option)


def counted(number: int, noun: str) -> str:
    """``number`` of what ``noun`` names, as English says it."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def storable(text: str) -> str:
    """``text`` as SQLite can hold it: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _plain(value: Any, depth: int) -> Any:
    if depth == 0:
        return "(nested too deeply)"
    if isinstance(value, dict):
        return {_plain(str(key), depth): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -_INTEGERS <= value < 2 * _INTEGERS:
        return str(value)
    return value
