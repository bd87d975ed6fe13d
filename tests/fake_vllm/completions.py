"""`/v1/completions`. See vllm/entrypoints/openai/completion/serving.py."""

from __future__ import annotations

from typing import Any

from tests.fake_vllm import capture, tokens
from tests.fake_vllm.engine import Choice, Piece, ended, logprobs, pieces
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

_DEFAULT_TOKENS = 16


def reply(asked: Asked) -> Reply:
    request = {**asked.request, "max_tokens": _limit(asked.request)}
    prompts = _prompts(request["prompt"])
    for prompt in prompts:
        check_length(prompt)
    choices = [
        _answer(asked, request, prompt, number, index)
        for number, prompt in enumerate(prompts)
        for index in range(request.get("n") or 1)
    ]
    sampling = capture.sampling({**request, **asked.exploration}, limit(request, prompts[0]))
    captured = capture.payload(prompts, choices, sampling, capture.refused(asked.request))
    if request.get("stream"):
        return _stream(asked, prompts, choices, captured)
    whole = {
        "id": asked.id("cmpl-"),
        "object": "text_completion",
        "created": asked.created,
        "model": asked.name,
        "choices": [_choice(asked, choice, prompts[choice.prompt]) for choice in choices],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {**usage(prompts, choices), **NO_DETAILS},
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    return document(whole, capture=captured)


def _limit(request: dict[str, Any]) -> int:
    given = request.get("max_tokens")
    if given == 0 and request.get("echo"):
        return 1  # vLLM samples one token and does not deliver it.
    return _DEFAULT_TOKENS if given is None else int(given)


def _prompts(given: Any) -> list[list[int]]:
    several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    return [tokens.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in several]


def _answer(asked: Asked, request: dict[str, Any], prompt: list[int], number: int, index: int) -> Choice:
    text = f" … so {asked.model.name} continues ({index}): “{tokens.decode(prompt)[-40:]}”, déjà vu, 日本 😀"
    count = number * (request.get("n") or 1) + index
    choice = Choice(count, text, (), [*tokens.encode(text), tokens.CLOSE], [], "stop", prompt=number)
    return ended(asked.model, request, choice, prompt)


def _choice(asked: Asked, choice: Choice, prompt: list[int]) -> dict[str, Any]:
    request = asked.request
    text, ids, values = _echoed(asked, prompt, choice.content, choice.ids, choice.logprobs)
    return {
        "index": choice.index,
        "text": text,
        "logprobs": _logprobs(request, ids, values, 0),
        "finish_reason": choice.finish,
        "stop_reason": choice.stop,
        "token_ids": choice.ids if request.get("return_token_ids") else None,
        "prompt_logprobs": prompt_logprobs(asked, prompt),
        "prompt_token_ids": prompt if request.get("return_token_ids") else None,
        "routed_experts": None,
    }


def _echoed(
    asked: Asked, prompt: list[int], text: str, ids: list[int], values: list[float]
) -> tuple[str, list[int], list[float | None]]:
    """Text, ids and logprobs as the client gets them: behind the prompt, where it asked for that."""
    if not asked.request.get("echo"):
        return text, ids, list(values)
    before = "" if asked.request.get("return_token_ids") else tokens.decode(prompt)
    known: list[float | None] = [None, *logprobs(asked.model.weights, prompt)[1:]]
    if asked.request.get("max_tokens") == 0:
        return before, prompt, known
    return before + text, [*prompt, *ids], [*known, *values]


def _stream(asked: Asked, prompts: list[list[int]], choices: list[Choice], captured: bytes) -> Reply:
    request = asked.request
    head = {"id": asked.id("cmpl-"), "object": "text_completion", "created": asked.created, "model": asked.name}
    options = request.get("stream_options")
    offsets, counts = [0] * len(choices), [0] * len(choices)
    steps = [pieces(choice) for choice in choices]
    frames: list[bytes] = []
    finish = 0
    for turn in range(max(map(len, steps))):
        for choice, its in zip(choices, steps, strict=True):
            if turn >= len(its):
                continue
            told = _chunk(
                asked, choice, its[turn], prompts[choice.prompt] if turn == 0 else None, offsets[choice.index]
            )
            offsets[choice.index] += sum(len(tokens.string(token)) for token in its[turn].ids)
            finish = len(frames)
            counts[choice.index] += len(its[turn].ids)
            last = its[turn].kind == "end" and not getattr(options, "include_usage", False)
            frame = {**head, "choices": [told], **({"system_fingerprint": FINGERPRINT} if last else {})}
            frames.append(data({**frame, **_running_usage(options, prompts[choice.prompt], counts[choice.index])}))
    if getattr(options, "include_usage", False):
        end = {**head, "choices": [], "usage": usage(prompts, choices), "system_fingerprint": FINGERPRINT}
        frames.append(data(end))
    return Reply(200, (*frames, DONE), STREAM, capture=captured, finish=finish)


def _running_usage(options: Any, prompt: list[int], count: int) -> dict[str, Any]:
    """What `continuous_usage_stats` adds to every chunk."""
    if not (getattr(options, "include_usage", False) and options.continuous_usage_stats):
        return {}
    total = len(prompt) + count
    return {"usage": {"prompt_tokens": len(prompt), "total_tokens": total, "completion_tokens": count}}


def _chunk(asked: Asked, choice: Choice, piece: Piece, prompt: list[int] | None, offset: int) -> dict[str, Any]:
    """``prompt`` with a choice's first chunk, where it is echoed or told."""
    request = asked.request
    text, ids, values = piece.text, piece.ids, list[float | None](piece.logprobs)
    if prompt is not None:
        text, ids, values = _echoed(asked, prompt, text, ids, piece.logprobs)
    told = request.get("return_token_ids")
    ended = piece.kind == "end"
    return {
        "index": choice.index,
        "text": text,
        "logprobs": _logprobs(request, ids, values, offset),
        "finish_reason": choice.finish if ended else None,
        "stop_reason": choice.stop if ended else None,
        "prompt_token_ids": prompt if told or request.get("echo") else None,
        "token_ids": piece.ids if told else None,
    }


def _logprobs(
    request: dict[str, Any], ids: list[int], values: list[float | None], offset: int
) -> dict[str, Any] | None:
    most = request.get("logprobs")
    if most is None:
        return None
    strings = [tokens.string(token) for token in ids]
    offsets = []
    for text in strings:
        offsets.append(offset)
        offset += len(text)
    tops = [
        None
        if value is None
        else {tokens.string((token + n) % 256): value - n for n in range(1, most + 1)} | {text: value}
        for token, text, value in zip(ids, strings, values, strict=True)
    ]
    return {"text_offset": offsets, "token_logprobs": values, "tokens": strings, "top_logprobs": tops}
