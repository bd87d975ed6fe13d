"""The fake's model: deterministic answers, and logprobs that depend on the weights and on every id before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.fake_vllm import orders, tokens

WEIGHTS = "adapter_model.safetensors"
BASE_WEIGHTS = b"the base model"

_STEPS = 1024
"""Logprobs are multiples of 1/1024, which float32 holds exactly."""
_PIECE = 7
"""Characters in a piece of a stream."""


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
    """As the engine says it: `stop` or `length`; dialects have words of their own for calls of tools."""
    reasoning: str = ""
    stop: str | None = None
    """The stop string that ended it."""
    prompt: int = 0
    """The number of its prompt, among those of the request."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step of the engine adds to a choice."""

    kind: str
    """`reasoning`, `content`, `call` (its text is the call's id), `arguments`, or `end`, which may bring content."""
    text: str
    ids: list[int]
    logprobs: list[float]
    call: int = 0
    """The number of the call that it belongs to."""


def logprobs(weights: bytes, ids: Sequence[int]) -> list[float]:
    """The logprob of each id given those before it: −3 to 0, a function of the weights and of all ids up to there."""
    state = hashlib.sha256(weights).digest()
    found = []
    for token in ids:
        state = hashlib.sha256(state + token.to_bytes(4, "little")).digest()
        found.append(-(1 + int.from_bytes(state[:4], "little") % (3 * _STEPS)) / _STEPS)
    return found


def answer(model: Model, request: dict[str, Any], index: int, salt: str = "") -> Choice:
    """Choice ``index`` of the model's answer to a chat request: what the last message orders (see
    `tests.fake_vllm.orders`); else a call of every tool that is offered, unless a tool's result was last; else who
    answers, and to what, or a value that fits the schema that is asked for. ``salt`` goes into the ids of calls."""
    messages = request["messages"]
    asked = tokens.text(messages[-1])
    ordered = orders.read(asked)
    calls: tuple[tuple[str, str], ...] = ()
    content = ""
    if ordered is not None:
        calls, content = ordered.calls, ordered.say or ""
    elif tools := _called(request):
        calls = tuple(_call(tool, asked) for tool in tools)
    elif (schema := _schema(request)) is not None:
        content = json.dumps(orders.fitting(schema, asked), ensure_ascii=False)
    else:
        content = f"{model.name} answers ({index}) “{asked[:60]}” — déjà vu, 日本 😀"
    before = tokens.prompt(messages)
    made = tuple(ToolCall(_call_id(salt, before, index, number), *call) for number, call in enumerate(calls))
    text = content + "".join(tokens.call_text(call.name, call.arguments) for call in made)
    reasoning = f"Somebody asks “{asked[:20]}”." if thinks(request) else ""
    opening = tokens.reasoning_text(reasoning) if reasoning else ""
    ids = [*tokens.encode(opening + text), tokens.CLOSE]
    choice = Choice(index, content, made, ids, [], "stop", reasoning=reasoning)
    return ended(model, request, choice, before)


def ended(model: Model, request: dict[str, Any], choice: Choice, before: list[int]) -> Choice:
    """The choice as `stop` and `max_tokens` leave it, with its logprobs. ``before`` are the prompt's ids."""
    stops = request.get("stop") or ()
    found = [
        (at, text) for text in ([stops] if isinstance(stops, str) else stops) if (at := choice.content.find(text)) >= 0
    ]
    if found and not choice.reasoning:
        at, text = min(found)
        ids = tokens.encode(choice.content[: at + len(text)])
        choice = replace(choice, content=choice.content[:at], tool_calls=(), ids=ids, stop=text)
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if limit is not None and limit < len(choice.ids):
        ids = choice.ids[:limit]
        reasoning, content = tokens.apart(tokens.decode(ids))
        choice = replace(
            choice, content=content, reasoning=reasoning, tool_calls=(), ids=ids, finish="length", stop=None
        )
    found_logprobs = logprobs(model.weights, [*before, *choice.ids])[len(before) :]
    return replace(choice, logprobs=found_logprobs)


def pieces(choice: Choice) -> list[Piece]:
    """The choice in the steps of a stream; their ids, joined, are the choice's.

    What ends at a limit or a stop string ends with its last content, else with a token of its own.
    """
    found: list[Piece] = []
    at = 0
    for kind, text, written, call in _steps(choice):
        end = min(at + len(tokens.encode(written)), len(choice.ids))
        found.append(Piece(kind, text, choice.ids[at:end], choice.logprobs[at:end], call))
        at = end
    closing = Piece("end", "", choice.ids[at:], choice.logprobs[at:])
    if found and found[-1].kind == "content" and (choice.finish == "length" or choice.stop is not None):
        last = found.pop()
        closing = Piece("end", last.text, last.ids + closing.ids, last.logprobs + closing.logprobs)
    return [*found, closing]


def said(choice: Choice) -> list[Piece]:
    """The steps that bring something, each by what it brings."""
    steps = [replace(piece, kind="content") if piece.kind == "end" else piece for piece in pieces(choice)]
    return [piece for piece in steps if piece.kind == "call" or piece.text]


def _steps(choice: Choice) -> Iterator[tuple[str, str, str, int]]:
    """Kind, text, what the model wrote for it, number of the call."""
    for number, text in enumerate(_cut(choice.reasoning)):
        yield "reasoning", text, tokens.THINK * (number == 0) + text, 0
    whole = bool(choice.reasoning) and (choice.finish != "length" or bool(choice.content))
    for number, text in enumerate(_cut(choice.content)):
        yield "content", text, tokens.END_THINK * (whole and number == 0) + text, 0
    for number, call in enumerate(choice.tool_calls):
        before = tokens.END_THINK * (whole and not choice.content and number == 0)
        yield "call", call.id, f"{before}<{call.name}>", number
        half = len(call.arguments) // 2
        yield "arguments", call.arguments[:half], call.arguments[:half], number
        yield "arguments", call.arguments[half:], f"{call.arguments[half:]}</{call.name}>", number


def _cut(text: str) -> list[str]:
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


def thinks(request: dict[str, Any]) -> bool:
    """Whether the answer begins with reasoning."""
    asked = (request.get("chat_template_kwargs") or {}).get("enable_thinking")
    effort = request.get("reasoning_effort")
    return bool(asked) or (effort is not None and effort != "none")


def structured(request: dict[str, Any]) -> bool:
    """Whether a grammar guides the sampling."""
    form = request.get("response_format")
    return (
        (isinstance(form, dict) and form.get("type") in ("json_object", "json_schema"))
        or request.get("structured_outputs") is not None
        or request.get("tool_choice") == "required"
        or isinstance(request.get("tool_choice"), dict)
    )


def named_tool(request: dict[str, Any]) -> str | None:
    """The tool that the request wants to be called."""
    choice = request.get("tool_choice")
    name = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
    return name if isinstance(name, str) else None


def _called(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools that the answer calls where nothing else is ordered."""
    offered: list[dict[str, Any]] = request.get("tools") or []
    name, choice = named_tool(request), request.get("tool_choice")
    if name is not None:
        return [tool for tool in offered if tool["function"]["name"] == name]
    if choice == "none" or (choice != "required" and request["messages"][-1].get("role") == "tool"):
        return []
    return offered[:1] if request.get("parallel_tool_calls") is False else offered


def _call(tool: dict[str, Any], asked: str) -> tuple[str, str]:
    function = tool["function"]
    return function["name"], orders.arguments(function.get("parameters"), asked)


def _call_id(salt: str, before: Sequence[int], index: int, number: int) -> str:
    """An id that no other call of the conversation has."""
    found = hashlib.sha256(f"{salt} {list(before)} {index} {number}".encode()).hexdigest()
    return f"chatcmpl-tool-{found[:16]}"


def _schema(request: dict[str, Any]) -> Any:
    """The schema that the answer must fit; None where any text will do."""
    asked = request.get("response_format")
    if not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return None
    return (asked.get("json_schema") or {}).get("schema")
