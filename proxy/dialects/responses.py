"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proxy.dialects.documents import Document, count, events, field, objects, parse
from proxy.dialects.normal import Answer, Pieces, content, function_call, function_tool, joined, text
from proxy.dialects.types import Continued, Issued
from storage.calls import Message, Reading

_DELTAS = {
    "response.output_text.delta": ("content", "output_text", "text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_text", "text"),
}
"""Deltas of an item's parts: the list that the part stands in, its type, and its field."""

_FIELD_DELTAS = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.code_interpreter_call_code.delta": "code",
}
"""Deltas of a field of an item."""

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_WAITING = frozenset({"queued", "in_progress"})


class Responses:
    name = "responses"
    path = "/v1/responses"
    # vLLM sends `completed` alone, also for an answer that was cut off at its limit, and breaks the connection on an
    # error; the others are OpenAI's.
    last_frames: tuple[bytes, ...] = (
        b"event: response.completed",
        b"event: response.incomplete",
        b"event: response.failed",
        b"event: error",
    )
    error_frames: tuple[bytes, ...] = (b"event: response.failed", b"event: error")

    def asked(self, document: Any) -> Reading:
        """The items of a turn as one message. A request that names an earlier response holds only what is new."""
        tools = tuple(_tool(tool) for tool in field(document, "tools", list) or ())
        continues = field(document, "previous_response_id", str)
        limit = count(document, "max_output_tokens")
        return Reading(tuple(_conversation(document)), (), tools, continues=continues, token_limit=limit)

    def read(self, request: bytes, response: bytes, streamed: bool) -> Reading:
        response_id, items = _answered(response, streamed)
        output = () if items is None else (_answer(items),)
        return replace(self.asked(parse(request)), output=output, response_id=response_id)

    def issued(self, response: bytes, streamed: bool) -> Issued:
        response_id, items = _answered(response, streamed)
        calls = (item["call_id"] for item in items or [] if _is_call(item) and isinstance(item.get("call_id"), str))
        return Issued(response_id, tuple(calls))

    def continued(self, document: Any) -> Continued:
        results = (item for item in objects(document, "input") if _is_result(item))
        answered = tuple(item["call_id"] for item in results if isinstance(item.get("call_id"), str))
        return Continued(field(document, "previous_response_id", str), answered)


def _tool(tool: Any) -> Any:
    """Functions in chat's form; tools that the server runs as they came."""
    return function_tool(tool, "parameters") if isinstance(tool, dict) and tool.get("type") == "function" else tool


def _kind(item: Any) -> str:
    return field(item, "type", str) or ""


def _is_call(item: Any) -> bool:
    return _kind(item).endswith("_call")


def _is_result(item: Any) -> bool:
    return _kind(item).endswith(("_call_output", "_response"))


def _conversation(document: Any) -> Iterator[Message]:
    instructions = document.get("instructions") if isinstance(document, dict) else None
    if isinstance(instructions, str):
        yield {"role": "system", "content": instructions}
    items = document.get("input") if isinstance(document, dict) else None
    if isinstance(items, str):
        yield {"role": "user", "content": items}
        return
    turn: list[Any] = []
    for item in items if isinstance(items, list) else []:
        role = field(item, "role", str)
        if not _is_result(item) and role in (None, "assistant"):
            turn.append(item)
            continue
        if turn:
            yield _answer(turn)
            turn = []
        yield _result(item) if _is_result(item) else {"role": role, "content": _content(item.get("content"))}
    if turn:
        yield _answer(turn)


def _content(value: Any) -> Any:
    if isinstance(value, list):
        return content([_part(part) for part in value])
    return "" if value is None else value


def _part(part: Any) -> Any:
    """A part as chat has it; what has no counterpart there stands as it came."""
    kind = _kind(part)
    if kind in ("input_text", "output_text"):
        return {**part, "type": "text"}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part


def _result(item: Document) -> Message:
    """What a tool gave, as a message of its own."""
    shown = _content(item["output"]) if "output" in item else [item]
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": shown}


def _answer(items: list[Any]) -> Message:
    """One turn of the model as one message; what a server's tools did stands among its parts."""
    answer = Answer()
    for item in items:
        kind = _kind(item)
        if kind == "reasoning":
            parts = objects(item, "content") or objects(item, "summary")
            answer.reasoning += [field(part, "text", str) or "" for part in parts]
        elif kind == "function_call":
            call_id, name = item.get("call_id"), item.get("name")
            call = function_call(call_id, name, item.get("arguments"), namespace=item.get("namespace"))
            answer.calls.append(call)
        elif kind == "custom_tool_call":
            custom = {"name": item.get("name"), "input": item.get("input")}
            answer.calls.append({"id": item.get("call_id"), "type": "custom", "custom": custom})
        elif field(item, "role", str) == "assistant" or kind == "message":
            _add_message(answer, item.get("content"))
        else:
            answer.parts.append({k: v for k, v in item.items() if k != "id"} if isinstance(item, dict) else item)
    return answer.message()


def _add_message(answer: Answer, said_so: Any) -> None:
    if isinstance(said_so, str):
        answer.parts.append(text(said_so))
    for part in said_so if isinstance(said_so, list) else []:
        refusal = field(part, "refusal", str)
        if refusal is not None and _kind(part) == "refusal":
            answer.refusals.append(refusal)
        else:
            answer.parts.append(_part(part))


def _answered(response: bytes, streamed: bool) -> tuple[str | None, list[Document] | None]:
    """The response's id, and its items; None where there is no answer (yet: ``background``)."""
    if streamed:
        return _streamed(response)
    document = parse(response)
    items = objects(document, "output")
    answered = items or (field(document, "output", list) == [] and field(document, "status", str) not in _WAITING)
    return field(document, "id", str), items if answered else None


def _streamed(response: bytes) -> tuple[str | None, list[Document] | None]:
    """What a client puts together: the last frame repeats the whole answer; without it the frames before must do."""
    response_id: str | None = None
    built = _Items()
    ended = False
    for event in events(response):
        kind = _kind(event)
        document = field(event, "response", dict)
        if document is None:
            built.add(kind, event)
            continue
        response_id = field(document, "id", str) or response_id
        ended = ended or kind in _ENDS
        if kind in _ENDS and (items := objects(document, "output")):
            return response_id, items
    return response_id, built.whole() if built.items or ended else None


class _Items:
    """The items of an answer, growing."""

    def __init__(self) -> None:
        self.items: dict[tuple[int, str], Document] = {}
        """By output index, and by id where a server repeats an index."""
        self._parts: dict[tuple[int, str], dict[tuple[str, int], Document]] = {}
        """Of an item that is not done: its parts, by the list that they stand in and the place there."""

    def add(self, kind: str, event: Document) -> None:
        index = field(event, "output_index", int) or 0
        if kind in ("response.output_item.added", "response.output_item.done"):
            item = field(event, "item", dict)
            if item is not None:
                key = index, field(item, "id", str) or ""
                self.items[key] = dict(item)
                self._parts[key] = {}
            return
        key = index, field(event, "item_id", str) or ""
        delta = field(event, "delta", str)
        if key not in self.items or delta is None:
            return
        if kind in _FIELD_DELTAS:
            _extend(self.items[key], _FIELD_DELTAS[kind], delta)
        elif kind in _DELTAS:
            name, part_kind, part_field = _DELTAS[kind]
            place = field(event, "summary_index" if name == "summary" else "content_index", int) or 0
            part = self._parts[key].setdefault((name, place), {"type": part_kind})
            _extend(part, part_field, delta)

    def whole(self) -> list[Document]:
        """The items with their texts joined and their parts in order."""
        for key, item in self.items.items():
            for (name, _), part in sorted(self._parts[key].items(), key=lambda entry: entry[0]):
                item[name] = [*(field(item, name, list) or []), part]
        return [joined(item) for item in self.items.values()]


def _extend(document: Document, name: str, piece: str) -> None:
    if not isinstance(document.get(name), Pieces):
        document[name] = Pieces([field(document, name, str) or ""])
    document[name].append(piece)
