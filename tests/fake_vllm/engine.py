"""The fake's model: deterministic answers, and logprobs that depend on the weights and on every id before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fake_vllm import orders, tokens

WEIGHTS = "adapter_model.safetensors"
BASE_WEIGHTS = b"the base model"

_STEPS = 1024
"""Logprobs are multiples of 1/1024, which float32 holds exactly."""


@dataclass(frozen=True, slots=True)
class Model:
    """The base model, or an adapter over it."""

    name: str
    weights: bytes

    @classmethod
    def of_folder(cls, name: str, folder: Path) -> Model:
        """The adapter in ``folder``. Raises FileNotFoundError where there is none."""
        return cls(name, (folder / WEIGHTS).read_bytes())


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer, as text and as ids."""

    index: int
    content: str
    tool_calls: tuple[ToolCall, ...]
    ids: list[int]
    logprobs: list[float]
    finish: str


def logprobs(weights: bytes, ids: Sequence[int]) -> list[float]:
    """The logprob of each id given those before it: −3 to 0, a function of the weights and of all ids up to there."""
    state = hashlib.sha256(weights).digest()
    found = []
    for token in ids:
        state = hashlib.sha256(state + token.to_bytes(4, "little")).digest()
        found.append(-(1 + int.from_bytes(state[:4], "little") % (3 * _STEPS)) / _STEPS)
    return found


def answer(model: Model, request: dict[str, Any], index: int) -> Choice:
    """Choice ``index`` of the model's answer: what the last message orders (see `tests.fake_vllm.orders`); else a call
    of every tool that is offered, unless a tool's result was last; else who answers, and to what, or a value that fits
    the schema that is asked for."""
    asked = tokens.text(request["messages"][-1])
    ordered = orders.read(asked)
    calls: tuple[tuple[str, str], ...] = ()
    if ordered is not None:
        calls, content = ordered.calls, ordered.say or ""
    elif (
        request.get("tools") and request.get("tool_choice") != "none" and request["messages"][-1].get("role") != "tool"
    ):
        calls = tuple(_call(tool, asked) for tool in request["tools"])
        content = ""
    elif (schema := _schema(request)) is not None:
        content = json.dumps(orders.fitting(schema, asked), ensure_ascii=False)
    else:
        content = f"{model.name} answers ({index}) “{asked[:60]}” — déjà vu, 日本 😀"
    before = tokens.prompt(request["messages"])
    made = tuple(ToolCall(_call_id(before, index, number), *call) for number, call in enumerate(calls))
    text = content + "".join(tokens.call_text(call.name, call.arguments) for call in made)
    return _cut(model, request, Choice(index, content, made, [*tokens.encode(text), tokens.CLOSE], [], "stop"))


def _cut(model: Model, request: dict[str, Any], choice: Choice) -> Choice:
    """The choice within `max_tokens`, with its logprobs."""
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    cut = limit is not None and limit < len(choice.ids)
    ids = choice.ids[:limit] if cut else choice.ids
    before = tokens.prompt(request["messages"])
    return Choice(
        index=choice.index,
        content=tokens.decode(ids) if cut else choice.content,
        tool_calls=() if cut else choice.tool_calls,
        ids=ids,
        logprobs=logprobs(model.weights, [*before, *ids])[len(before) :],
        finish="length" if cut else ("tool_calls" if choice.tool_calls else "stop"),
    )


def _call(tool: dict[str, Any], asked: str) -> tuple[str, str]:
    function = tool["function"]
    return function["name"], orders.arguments(function.get("parameters"), asked)


def _call_id(before: Sequence[int], index: int, number: int) -> str:
    """An id that no other call of the conversation has."""
    found = hashlib.sha256(f"{list(before)} {index} {number}".encode()).hexdigest()
    return f"chatcmpl-tool-{found[:32]}"


def _schema(request: dict[str, Any]) -> Any:
    """The schema that the answer must fit; None where any text will do."""
    asked = request.get("response_format")
    if not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return None
    return (asked.get("json_schema") or {}).get("schema")
