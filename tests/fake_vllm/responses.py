"""`/v1/responses`. See vllm/entrypoints/openai/responses/serving.py and streaming_events.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.fake_vllm import capture, conversations, tokens
from tests.fake_vllm.engine import Choice, Piece, answer, said
from tests.fake_vllm.replies import STREAM, Asked, Reply, document, event, limit
from tests.fake_vllm.validation import check_length

Item = dict[str, Any]


def reply(asked: Asked, earlier: list[dict[str, Any]]) -> tuple[Reply, dict[str, Any], list[dict[str, Any]]]:
    """The response; its document and the conversation up to its end, for a server that stores them."""
    chat = conversations.of_responses(asked.request, earlier)
    choice = answer(asked.model, chat, 0, asked.calls_salt)
    prompt = tokens.prompt(chat["messages"])
    check_length(prompt)
    most = limit(chat, prompt)
    sampling = capture.sampling({**chat, **asked.exploration}, most)
    captured = capture.payload([prompt], [choice], sampling, capture.refused(chat))
    head = _document(asked, most)
    output = _output(asked, choice)
    whole = {
        **head,
        "incomplete_details": {"reason": "max_output_tokens"} if choice.finish == "length" else None,
        "output": output,
        "status": "incomplete" if choice.finish == "length" else "completed",
        "usage": _usage(prompt, choice),
    }
    messages = [*chat["messages"], {"role": "assistant", "content": choice.content, "tool_calls": _calls(choice)}]
    if not asked.request.get("stream"):
        return document(whole, capture=captured), whole, messages
    events = [*_opening_events(head), *_events(asked, choice), ("response.completed", {"response": whole})]
    frames = [
        event(kind, {**fields, "sequence_number": number, "type": kind}) for number, (kind, fields) in enumerate(events)
    ]
    stream = Reply(200, tuple(frames), STREAM, capture=captured, finish=len(frames) - 1)
    return stream, whole, messages


def _document(asked: Asked, most: int) -> dict[str, Any]:
    """The response as far as it is known at its beginning."""
    request = asked.request
    tools = [{**_tool_defaults(tool), **tool} for tool in request.get("tools") or ()]
    given = request.get("parallel_tool_calls")
    logprobs = "message.output_text.logprobs" in (request.get("include") or ())
    return {
        "id": response_id(asked),
        "created_at": asked.created,
        "incomplete_details": None,
        "instructions": request.get("instructions"),
        "metadata": request.get("metadata"),
        "model": asked.name,
        "object": "response",
        "output": [],
        "parallel_tool_calls": True if given is None else given,
        "temperature": _or(request.get("temperature"), 1.0),
        "tool_choice": request.get("tool_choice", "auto") if tools else "none",
        "tools": tools,
        "top_p": 1.0 if request.get("temperature") == 0 else _or(request.get("top_p"), 1.0),
        "background": request.get("background", False),
        "max_output_tokens": most,
        "max_tool_calls": request.get("max_tool_calls"),
        "previous_response_id": request.get("previous_response_id"),
        "prompt": None,
        "reasoning": _with(request.get("reasoning"), ("context", "effort", "generate_summary", "mode", "summary")),
        "service_tier": request.get("service_tier", "auto"),
        "status": "in_progress",
        "text": _with(request.get("text"), ("format", "verbosity")),
        "top_logprobs": _or(request.get("top_logprobs"), 0) if logprobs else None,
        "truncation": request.get("truncation", "disabled"),
        "usage": None,
        "user": request.get("user"),
        "presence_penalty": _or(request.get("presence_penalty"), 0.0),
        "frequency_penalty": _or(request.get("frequency_penalty"), 0.0),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def response_id(asked: Asked) -> str:
    """As the client wishes it, which vLLM allows."""
    given = asked.request.get("request_id")
    return given if isinstance(given, str) else asked.id("resp_")


def _tool_defaults(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        return {}
    names = ("strict", "allowed_callers", "async", "defer_loading", "description", "output_schema")
    return dict.fromkeys(names)


def _with(given: Any, names: tuple[str, ...]) -> Any:
    return {**dict.fromkeys(names), **given} if isinstance(given, dict) else given


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _usage(prompt: list[int], choice: Choice) -> dict[str, Any]:
    asked, sampled = len(prompt), len(choice.ids)
    return {
        "input_tokens": asked,
        "input_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": sampled,
        "output_tokens_details": {
            "reasoning_tokens": len(tokens.encode(choice.reasoning)),
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": asked + sampled,
    }


def _calls(choice: Choice) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.tool_calls
    ]


def _output(asked: Asked, choice: Choice) -> list[Item]:
    """The items of a response; a stream ends with the same ones."""
    found: list[Item] = []
    if choice.reasoning:
        found.append(_reasoning(asked, choice.reasoning, "completed" if asked.request.get("stream") else None))
    if choice.content or not choice.tool_calls:
        found.append(_message(asked, choice.content, "completed"))
    return found + [_function_call(asked, choice, number, "completed") for number in range(len(choice.tool_calls))]


def _reasoning(asked: Asked, text: str, status: str | None) -> Item:
    content = [{"text": text, "type": "reasoning_text"}] if text else None
    return {
        "id": asked.id("rs_"),
        "summary": [],
        "type": "reasoning",
        "content": content,
        "encrypted_content": None,
        "status": status,
    }


def _message(asked: Asked, text: str, status: str) -> Item:
    content = [_text(text, None)] if text else []
    shape = {"role": "assistant", "status": status, "type": "message", "phase": None}
    return {"id": asked.id("msg_"), "content": content, **shape}


def _text(text: str, logprobs: list[Any] | None) -> Item:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _function_call(asked: Asked, choice: Choice, number: int, status: str) -> Item:
    call = choice.tool_calls[number]
    return {
        "arguments": call.arguments if status == "completed" else "",
        "call_id": call.id,
        "name": call.name,
        "type": "function_call",
        "id": asked.id("fc_", number),
        "async": None,
        "caller": None,
        "namespace": None,
        "status": status,
    }


Event = tuple[str, dict[str, Any]]


def _opening_events(head: dict[str, Any]) -> list[Event]:
    return [("response.created", {"response": head}), ("response.in_progress", {"response": head})]


def _events(asked: Asked, choice: Choice) -> Iterator[Event]:
    """What happens between the response's beginning and its end: item after item."""
    opened: tuple[str, int] | None = None
    output = _output(asked, choice)
    at = -1
    for piece in said(choice):
        kind = "call" if piece.kind == "arguments" else piece.kind
        if opened != (kind, piece.call):
            if opened is not None:
                yield from _close(output[at], at)
            opened, at = (kind, piece.call), at + 1
            yield from _open(asked, choice, piece, at, output[at]["id"])
        if piece.kind != "call" and piece.text:
            yield _delta(piece, at, output[at]["id"])
    if opened is not None:
        yield from _close(output[at], at)


def _open(asked: Asked, choice: Choice, piece: Piece, at: int, item_id: str) -> Iterator[Event]:
    if piece.kind == "call":
        item = _function_call(asked, choice, piece.call, "in_progress")
        yield "response.output_item.added", {"item": item, "output_index": at}
        return
    if piece.kind == "reasoning":
        item, part = _reasoning(asked, "", "in_progress"), {"text": "", "type": "reasoning_text"}
    else:
        item, part = _message(asked, "", "in_progress"), _text("", [])
    yield "response.output_item.added", {"item": item, "output_index": at}
    yield "response.content_part.added", {"content_index": 0, "item_id": item_id, "output_index": at, "part": part}


def _delta(piece: Piece, at: int, item_id: str) -> Event:
    where = {"delta": piece.text, "item_id": item_id}
    match piece.kind:
        case "reasoning":
            return "response.reasoning_text.delta", {"content_index": 0, **where, "output_index": at}
        case "arguments":
            return "response.function_call_arguments.delta", {**where, "output_index": at}
    return "response.output_text.delta", {"content_index": 0, **where, "logprobs": [], "output_index": at}


def _close(item: Item, at: int) -> Iterator[Event]:
    where = {"item_id": item["id"], "output_index": at}
    if item["type"] == "function_call":
        told = {"arguments": item["arguments"], **where}
        yield "response.function_call_arguments.done", {**told, "name": item["name"]}
    else:
        (part,) = item["content"]
        kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
        logprobs: dict[str, Any] = {} if item["type"] == "reasoning" else {"logprobs": []}
        yield f"response.{kind}.done", {"content_index": 0, **logprobs, **where, "text": part["text"]}
        yield "response.content_part.done", {"content_index": 0, **where, "part": part}
    yield "response.output_item.done", {"item": item, "output_index": at}
