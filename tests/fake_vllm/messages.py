"""`/v1/messages` and `/v1/messages/count_tokens`. See vllm/entrypoints/anthropic/serving.py."""

from __future__ import annotations

import json
from typing import Any

from tests.fake_vllm import capture, conversations, tokens
from tests.fake_vllm.engine import Choice, Piece, answer, pieces, said
from tests.fake_vllm.replies import STREAM, Asked, Reply, document, event, limit
from tests.fake_vllm.validation import check_length


def reply(asked: Asked) -> Reply:
    chat = conversations.of_messages(asked.request)
    choice = answer(asked.model, chat, 0, asked.calls_salt)
    prompt = tokens.prompt(chat["messages"])
    check_length(prompt)
    sampling = capture.sampling({**chat, **asked.exploration}, limit(chat, prompt))
    captured = capture.payload([prompt], [choice], sampling, capture.refused(chat))
    if asked.request.get("stream"):
        return _stream(asked, prompt, choice, captured)
    stop = {"stop_sequence": choice.stop} if choice.stop is not None else {}
    whole = {
        "id": asked.id("chatcmpl-"),
        "type": "message",
        "role": "assistant",
        "content": _blocks(asked, choice),
        "model": asked.name,
        "stop_reason": _stop_reason(choice),
        **stop,
        "usage": {"input_tokens": len(prompt), "output_tokens": len(choice.ids)},
    }
    return document(whole, capture=captured)


def count_tokens(request: dict[str, Any]) -> Reply:
    count = len(tokens.prompt(conversations.of_messages(request)["messages"]))
    return document({"input_tokens": count, "context_management": {"original_input_tokens": count}})


def error(status: int, kind: str, message: str) -> Reply:
    """An error in Anthropic's form."""
    return document({"type": "error", "error": {"type": kind, "message": message}}, status)


def _blocks(asked: Asked, choice: Choice) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if choice.reasoning:
        found.append({"type": "thinking", "thinking": choice.reasoning, "signature": asked.id("", "signature")})
    if choice.content:
        found.append({"type": "text", "text": choice.content})
    for call in choice.tool_calls:
        found.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)})
    return found or [{"type": "text", "text": ""}]


def _stop_reason(choice: Choice) -> str:
    if choice.finish == "length":
        return "max_tokens"
    if choice.tool_calls:
        return "tool_use"
    return "end_turn" if choice.stop is None else "stop_sequence"


def _stream(asked: Asked, prompt: list[int], choice: Choice, captured: bytes) -> Reply:
    start: dict[str, Any] = {
        "id": asked.id("chatcmpl-"),
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": asked.name,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": len(prompt), "output_tokens": 0},
    }
    frames = [_event("message_start", message=start)]
    opened: tuple[str, int] | None = None
    block = 0
    for piece in said(choice):
        kind = "call" if piece.kind == "arguments" else piece.kind
        if opened != (kind, piece.call):
            if opened is not None:
                frames += _close(asked, opened[0], block)
                block += 1
            opened = (kind, piece.call)
            frames.append(_event("content_block_start", index=block, content_block=_opening(choice, piece)))
        if piece.kind != "call" and piece.text:
            frames.append(_event("content_block_delta", index=block, delta=_delta(piece)))
    # What ends with content has it in a frame behind the capture.
    finish = len(frames) - bool(pieces(choice)[-1].text)
    if opened is not None:
        frames += _close(asked, opened[0], block)
    delta = {"stop_reason": _stop_reason(choice), "stop_sequence": None if choice.tool_calls else choice.stop}
    told = {"input_tokens": len(prompt), "output_tokens": len(choice.ids)}
    frames += [_event("message_delta", delta=delta, usage=told), _event("message_stop")]
    return Reply(200, tuple(frames), STREAM, capture=captured, finish=finish)


def _opening(choice: Choice, piece: Piece) -> dict[str, Any]:
    if piece.kind == "call":
        call = choice.tool_calls[piece.call]
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
    if piece.kind == "reasoning":
        return {"type": "thinking", "thinking": ""}
    return {"type": "text", "text": ""}


def _delta(piece: Piece) -> dict[str, Any]:
    match piece.kind:
        case "reasoning":
            return {"type": "thinking_delta", "thinking": piece.text}
        case "arguments":
            return {"type": "input_json_delta", "partial_json": piece.text}
    return {"type": "text_delta", "text": piece.text}


def _close(asked: Asked, kind: str, block: int) -> list[bytes]:
    signature = {"type": "signature_delta", "signature": asked.id("", "signature")}
    signed = [_event("content_block_delta", index=block, delta=signature)] if kind == "reasoning" else []
    return [*signed, _event("content_block_stop", index=block)]


_ORDER = ("message", "delta", "content_block", "index", "usage")


def _event(kind: str, **fields: Any) -> bytes:
    return event(kind, {"type": kind, **{name: fields[name] for name in _ORDER if name in fields}})
