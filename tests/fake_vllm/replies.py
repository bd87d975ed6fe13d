"""Responses before anything goes wrong with them, and what those of several paths have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.fake_vllm import tokens
from tests.fake_vllm.engine import Choice, Model, logprobs
from tests.fake_vllm.validation import MAX_MODEL_LEN

DONE = b"data: [DONE]\n\n"
STREAM = b"text/event-stream; charset=utf-8"
CREATED = 1_700_000_000
DATE = b"Tue, 14 Nov 2023 22:13:20 GMT"
"""Of every response, so that equal requests have equal answers."""
FINGERPRINT = "vllm-0.32.0-fake"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: its body in the messages in which it is written."""

    status: int
    parts: tuple[bytes, ...]
    content_type: bytes | None = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    capture: bytes | None = None
    """The plugin's payload; None where nothing was generated."""
    finish: int = 0
    """The part ahead of which the capture goes: the first after the generation ended."""

    @property
    def streamed(self) -> bool:
        return self.content_type == STREAM


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a model: everything that its answer depends on."""

    model: Model
    """Who answers."""
    name: str
    """The model's name in the response: as the client wrote it, else the base model's."""
    request: dict[str, Any]
    salt: str
    """Makes the response's ids."""
    calls_salt: str
    """Makes the ids of the tool calls in it, together with the conversation."""
    exploration: dict[str, float]
    """Sampling parameters that stand above those of the request, unseen by the client."""
    created: int = CREATED
    """Every document's time: answers to equal requests are equal bytes."""

    def id(self, prefix: str, *more: object) -> str:
        """An id of this response; with ``more``, of a part of it."""
        return prefix + hashlib.sha256(repr((self.salt, *more)).encode()).hexdigest()[:16]


def document(value: Any, status: int = 200, capture: bytes | None = None) -> Reply:
    return Reply(status, (to_json(value),), capture=capture)


def error(status: int, kind: str, message: str, param: str | None = None) -> Reply:
    """An error in vLLM's form."""
    return document({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


def usage(prompts: Sequence[list[int]], choices: Sequence[Choice]) -> dict[str, Any]:
    asked, sampled = sum(map(len, prompts)), sum(len(choice.ids) for choice in choices)
    return {"prompt_tokens": asked, "total_tokens": asked + sampled, "completion_tokens": sampled}


NO_DETAILS = {"prompt_tokens_details": None, "completion_tokens_details": None}
"""What else stands in the usage of a plain response."""


def prompt_logprobs(asked: Asked, prompt: list[int]) -> list[dict[str, Any] | None] | None:
    """Those of a prompt, where they are asked for; an echo with logprobs asks for them, too."""
    request = asked.request
    if request.get("prompt_logprobs") is None and not (request.get("echo") and request.get("logprobs") is not None):
        return None
    values = logprobs(asked.model.weights, prompt)
    return [None] + [
        {str(token): {"logprob": value, "rank": 1, "decoded_token": tokens.string(token)}}
        for token, value in zip(prompt[1:], values[1:], strict=True)
    ]


def limit(request: dict[str, Any], prompt: list[int]) -> int:
    """The most tokens that a choice may have."""
    rest = MAX_MODEL_LEN - len(prompt)
    given = request.get("max_completion_tokens") or request.get("max_tokens")
    return rest if given is None else min(given, rest)


def data(value: Any) -> bytes:
    """A frame without a name."""
    return b"data: " + to_json(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data(value)


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
