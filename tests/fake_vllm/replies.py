"""Whole responses, before anything goes wrong with them: what `/v1/chat/completions` and the others answer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tests.fake_vllm import capture, tokens
from tests.fake_vllm.engine import Choice, Model, answer, logprobs
from tests.fake_vllm.state import CREATED

DONE = b"data: [DONE]\n\n"
_DELTA_CHARACTERS = 7


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: its body in the messages in which it is written."""

    status: int
    parts: tuple[bytes, ...]
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    capture: bytes | None = None
    """The plugin's payload; None where nothing was generated."""
    finish: int = 0
    """The part ahead of which the capture goes: the first after the generation ended."""

    @property
    def streamed(self) -> bool:
        return self.content_type.startswith(b"text/event-stream")


def document(value: Any, status: int = 200) -> Reply:
    return Reply(status, (_json(value),))


def error(status: int, kind: str, message: str) -> Reply:
    """An error in vLLM's form."""
    return document({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def chat(model: Model, request: dict[str, Any], body: bytes) -> Reply:
    """`/v1/chat/completions`."""
    choices = [answer(model, request, index) for index in range(request.get("n") or 1)]
    prompt = tokens.prompt(request["messages"])
    captured = capture.payload(prompt, choices, capture.sampling(request))
    head = {"id": f"chatcmpl-{hashlib.sha256(body).hexdigest()[:16]}", "created": CREATED, "model": request["model"]}
    if request.get("stream"):
        return _chat_stream(request, choices, captured, head, len(prompt))
    whole = {
        **head,
        "object": "chat.completion",
        "choices": [_message(choice) for choice in choices],
        "usage": _usage(len(prompt), choices),
        "prompt_logprobs": None,
    }
    return Reply(200, (_json(whole),), capture=captured)


def completion(model: Model, request: dict[str, Any]) -> Reply:
    """`/v1/completions` with a list of ids, for the sake of its `prompt_logprobs`."""
    ids: list[int] = request["prompt"]
    found = logprobs(model.weights, ids)
    choice = Choice(0, "", (), [tokens.CLOSE], logprobs(model.weights, [*ids, tokens.CLOSE])[-1:], "length")
    rows = [None] + [
        {str(token): {"logprob": value, "rank": 1, "decoded_token": "?"}}
        for token, value in zip(ids[1:], found[1:], strict=True)
    ]
    whole = {
        "id": "cmpl-fake",
        "object": "text_completion",
        "created": CREATED,
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "text": "",
                "logprobs": None,
                "finish_reason": "length",
                "prompt_logprobs": rows if request.get("prompt_logprobs") is not None else None,
            }
        ],
        "usage": _usage(len(ids), [choice]),
    }
    return Reply(200, (_json(whole),), capture=capture.payload(ids, [choice], capture.sampling(request)))


def _message(choice: Choice) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.tool_calls
    ]
    message = {"role": "assistant", "content": choice.content or None, "refusal": None, "tool_calls": calls}
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None,
        "finish_reason": choice.finish,
        "stop_reason": None,
    }


def _chat_stream(
    request: dict[str, Any], choices: list[Choice], captured: bytes, head: dict[str, Any], prompt_tokens: int
) -> Reply:
    head = {**head, "object": "chat.completion.chunk"}
    deltas = [_deltas(choice) for choice in choices]
    frames: list[bytes] = []
    for turn in range(max(map(len, deltas))):
        for choice, its in zip(choices, deltas, strict=True):
            if turn < len(its):
                frames.append(_frame(head, [{"index": choice.index, "delta": its[turn], "finish_reason": None}]))
    finish = len(frames)
    for choice in choices:
        frames.append(_frame(head, [{"index": choice.index, "delta": {}, "finish_reason": choice.finish}]))
    if (request.get("stream_options") or {}).get("include_usage"):
        frames.append(_frame({**head, "usage": _usage(prompt_tokens, choices)}, []))
    return Reply(200, (*frames, DONE), b"text/event-stream; charset=utf-8", capture=captured, finish=finish)


def _deltas(choice: Choice) -> list[dict[str, Any]]:
    """The pieces of an answer: the role, then text; of a tool call its id and name, then its arguments in two."""
    found: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    text = choice.content
    found += [{"content": text[at : at + _DELTA_CHARACTERS]} for at in range(0, len(text), _DELTA_CHARACTERS)]
    for number, call in enumerate(choice.tool_calls):
        first = {"index": number, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        half = len(call.arguments) // 2
        found.append({"tool_calls": [first]})
        for piece in (call.arguments[:half], call.arguments[half:]):
            found.append({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
    return found


def _frame(head: dict[str, Any], choices: list[dict[str, Any]]) -> bytes:
    return b"data: " + _json({**head, "choices": choices}) + b"\n\n"


def _usage(prompt_tokens: int, choices: list[Choice]) -> dict[str, int]:
    sampled = sum(len(choice.ids) for choice in choices)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": sampled, "total_tokens": prompt_tokens + sampled}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
