"""The fake's model: deterministic answers, and logprobs that depend on the weights and on every id before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fake_vllm import tokens

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
    """Choice ``index`` of the model's answer: who answers, and to what; or a call of every tool that is offered."""
    asked = tokens.text(request["messages"][-1])
    calls: tuple[ToolCall, ...] = ()
    content = f"{model.name} answers ({index}) “{asked[:60]}” — déjà vu, 日本 😀"
    if request.get("tools") and request.get("tool_choice") != "none" and request["messages"][-1].get("role") != "tool":
        calls = tuple(_call(tool, asked, index, number) for number, tool in enumerate(request["tools"]))
        content = ""
    text = content + "".join(tokens.call_text(call.name, call.arguments) for call in calls)
    return _cut(model, request, Choice(index, content, calls, [*tokens.encode(text), tokens.CLOSE], [], "stop"))


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


def _call(tool: dict[str, Any], asked: str, index: int, number: int) -> ToolCall:
    name = tool["function"]["name"]
    return ToolCall(f"chatcmpl-tool-{index}-{number}", name, json.dumps({"input": asked[:40]}, ensure_ascii=False))
