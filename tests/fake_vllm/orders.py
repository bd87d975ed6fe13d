"""What a conversation orders the fake's model to answer, and values that fit a JSON schema.

The last message may hold orders, in any text of it; without one the model answers as `engine.answer` says.

| order | the answer |
|---|---|
| `[[call NAME {"a": 1}]]` | a call of that tool with these arguments; several orders are parallel calls |
| `[[say TEXT]]` | this text |
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_CALL = re.compile(r"\[\[call (\S+) (\{.*?\})\]\]", re.DOTALL)
_SAY = re.compile(r"\[\[say (.*?)\]\]", re.DOTALL)
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Orders:
    say: str | None
    calls: tuple[tuple[str, str], ...]
    """Names and arguments."""


def read(text: str) -> Orders | None:
    """The orders in ``text``; None where it holds none."""
    calls = tuple((name, arguments) for name, arguments in _CALL.findall(text))
    said = _SAY.search(text)
    return Orders(said[1] if said else None, calls) if said or calls else None


def arguments(parameters: Any, asked: str) -> str:
    """Arguments of a tool for ``asked``: what its schema requires, or the text alone where it names nothing."""
    if isinstance(parameters, dict) and parameters.get("properties"):
        return json.dumps(fitting(parameters, asked), ensure_ascii=False)
    return json.dumps({"input": asked[:_LONGEST]}, ensure_ascii=False)


def fitting(schema: Any, asked: str) -> Any:
    """A value that fits ``schema``, a function of it and of ``asked``; of a schema's words only the usual few."""
    return _fitting(schema, asked, schema)


def _fitting(schema: Any, asked: str, root: Any) -> Any:
    if not isinstance(schema, dict):
        return asked[:_LONGEST]
    if "$ref" in schema:
        return _fitting(_resolve(str(schema["$ref"]), root), asked, root)
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return _fitting(schema[choice][0], asked, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][len(asked) % len(schema["enum"])]
    kind = schema.get("type", "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties") or {}
            return {name: _fitting(its, asked, root) for name, its in properties.items()}
        case "array":
            return [_fitting(schema.get("items"), asked, root) for _ in range(schema.get("minItems", 1))]
        case "integer" | "number":
            return max(len(asked), schema.get("minimum", 0))
        case "boolean":
            return len(asked) % 2 == 0
        case "null":
            return None
    return asked[: schema.get("maxLength", _LONGEST)]


def _resolve(reference: str, root: Any) -> Any:
    """What ``#/$defs/Name`` stands for in ``root``."""
    found = root
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found
