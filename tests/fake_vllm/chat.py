"""`/v1/chat/completions`. See vllm/entrypoints/openai/chat_completion/serving.py."""

from __future__ import annotations

from typing import Any

from tests.fake_vllm import capture, tokens
from tests.fake_vllm.engine import Choice, Piece, answer, named_tool, pieces
from tests.fake_vllm.replies import (
    DONE,
    FINGERPRINT,
    NO_DETAILS,
    STREAM,
    Asked,
    Reply,
    data,
    document,
    limit,
    prompt_logprobs,
    usage,
)
from tests.fake_vllm.validation import check_length


def reply(asked: Asked) -> Reply:
    request = asked.request
    choices = [answer(asked.model, request, index, asked.calls_salt) for index in range(request.get("n") or 1)]
    prompt = tokens.prompt(request["messages"])
    check_length(prompt)
    sampling = capture.sampling({**request, **asked.exploration}, limit(request, prompt))
    captured = capture.payload([prompt], choices, sampling, capture.refused(request))
    if request.get("stream"):
        return _stream(asked, prompt, choices, captured)
    whole = {
        "id": asked.id("chatcmpl-"),
        "object": "chat.completion",
        "created": asked.created,
        "model": asked.name,
        "choices": [_choice(request, choice) for choice in choices],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {**usage([prompt], choices), **NO_DETAILS},
        "prompt_logprobs": prompt_logprobs(asked, prompt),
        "prompt_token_ids": prompt if request.get("return_token_ids") else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    return document(whole, capture=captured)


def _choice(request: dict[str, Any], choice: Choice) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.tool_calls
    ]
    message = {
        "role": "assistant",
        "content": choice.content or (None if calls and request.get("tool_choice") in (None, "auto") else ""),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": calls} if calls else {}),
        "reasoning": choice.reasoning or None,
    }
    return {
        "index": choice.index,
        "message": message,
        "logprobs": _logprobs(request, choice.ids, choice.logprobs),
        "finish_reason": _finish(request, choice),
        "stop_reason": choice.stop,
        "token_ids": choice.ids if request.get("return_token_ids") else None,
        "routed_experts": None,
    }


def _finish(request: dict[str, Any], choice: Choice) -> str:
    """`stop` for a tool that the request named, as in OpenAI's API."""
    called = choice.tool_calls and choice.finish == "stop" and named_tool(request) is None
    return "tool_calls" if called else choice.finish


def _stream(asked: Asked, prompt: list[int], choices: list[Choice], captured: bytes) -> Reply:
    request = asked.request
    head = {
        "id": asked.id("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": asked.created,
        "model": asked.name,
    }
    options = request.get("stream_options")
    counts = [0] * len(choices)
    ids = prompt if request.get("return_token_ids") else None
    frames: list[bytes] = []
    for choice in choices:
        delta = {"role": "assistant", "content": ""}
        first = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        frame = {**head, "choices": [first], "prompt_token_ids": ids, "prompt_text": None}
        frames.append(data({**frame, **_running_usage(options, prompt, 0)}))
    steps = [pieces(choice) for choice in choices]
    finish = 0
    for turn in range(max(map(len, steps))):
        for choice, its in zip(choices, steps, strict=True):
            if turn < len(its):
                counts[choice.index] += len(its[turn].ids)
                finish = len(frames)
                frame = {**head, **_chunk(request, choice, its[turn])}
                frames.append(data({**frame, **_running_usage(options, prompt, counts[choice.index])}))
    if getattr(options, "include_usage", False):
        end = {**head, "choices": [], "usage": usage([prompt], choices), "system_fingerprint": FINGERPRINT}
        frames.append(data(end))
    return Reply(200, (*frames, DONE), STREAM, capture=captured, finish=finish)


def _running_usage(options: Any, prompt: list[int], count: int) -> dict[str, Any]:
    """What `continuous_usage_stats` adds to every chunk."""
    if not (getattr(options, "include_usage", False) and options.continuous_usage_stats):
        return {}
    total = len(prompt) + count
    told = {"prompt_tokens": len(prompt), "total_tokens": total, "completion_tokens": count}
    return {"usage": {**told, "completion_tokens_details": None}}


def _chunk(request: dict[str, Any], choice: Choice, piece: Piece) -> dict[str, Any]:
    told = {
        "index": choice.index,
        "delta": _delta(choice, piece),
        "logprobs": _logprobs(request, piece.ids, piece.logprobs),
        "finish_reason": None,
        "token_ids": piece.ids if request.get("return_token_ids") else None,
    }
    if piece.kind != "end":
        return {"choices": [told]}
    told = {**told, "finish_reason": _finish(request, choice), "stop_reason": choice.stop}
    shown = not getattr(request.get("stream_options"), "include_usage", False)
    return {"choices": [told], **({"system_fingerprint": FINGERPRINT} if shown else {})}


def _delta(choice: Choice, piece: Piece) -> dict[str, Any]:
    match piece.kind:
        case "reasoning":
            return {"reasoning": piece.text}
        case "call":
            call = choice.tool_calls[piece.call]
            opened = {"id": call.id, "type": "function", "index": piece.call, "function": {"name": call.name}}
            return {"content": None, "tool_calls": [opened]}
        case "arguments":
            return {"content": None, "tool_calls": [{"index": piece.call, "function": {"arguments": piece.text}}]}
        case "end" if not piece.text:
            return {}
    return {"content": piece.text}


def _logprobs(request: dict[str, Any], ids: list[int], values: list[float]) -> dict[str, Any] | None:
    if not request.get("logprobs"):
        return None
    most = request.get("top_logprobs") or 0
    return {
        "content": [
            {**_token(token, value), "top_logprobs": [_token((token + n) % 256, value - n) for n in range(most)]}
            for token, value in zip(ids, values, strict=True)
        ]
    }


def _token(token: int, value: float) -> dict[str, Any]:
    text = tokens.string(token)
    return {"token": text, "logprob": value, "bytes": list(text.encode())}
