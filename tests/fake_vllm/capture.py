"""The plugin's protocol: the mark on a request, the frame in its response. See proxy/vllm_plugin/capture.py."""

from __future__ import annotations

import hmac
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.fake_vllm.engine import Choice, structured
from tests.fake_vllm.tokens import multimodal

HEADER = b"x-slipstream"
AS_THE_BODY_SAYS = "-"
_NONCE = re.compile(r"[0-9a-f]{32}")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?"
_EXPLORATION = re.compile(rf"temperature={_NUMBER},top_p={_NUMBER},top_k=[0-9]+,min_p={_NUMBER}")


@dataclass(frozen=True, slots=True)
class Mark:
    """What the proxy asks of a request."""

    nonce: str
    model: str | None
    """Who answers; None: as the body says, without capture."""
    exploration: dict[str, float] = field(default_factory=dict)
    """Sampling parameters that stand above those of the body."""


def read_mark(headers: Sequence[tuple[bytes, bytes]], secret: str | None) -> Mark | None:
    """The proxy's mark; None for a request of anyone else, and where the plugin does not run (no secret)."""
    values = [value.decode("latin-1").split(" ") for name, value in headers if name == HEADER]
    if secret is None or len(values) != 1 or len(values[0]) not in (3, 4):
        return None
    given, nonce, model, *explored = values[0]
    if not hmac.compare_digest(given.encode(), secret.encode()) or not _NONCE.fullmatch(nonce):
        return None
    if not model or any(not _EXPLORATION.fullmatch(told) for told in explored):
        return None
    pairs = [pair.split("=") for told in explored for pair in told.split(",")]
    exploration = {name: int(value) if name == "top_k" else float(value) for name, value in pairs}
    return Mark(nonce, None if model == AS_THE_BODY_SAYS else unquote(model), exploration)


def payload(
    prompts: Sequence[list[int]], choices: Sequence[Choice], sampling: dict[str, Any], reason: str | None = None
) -> bytes:
    """The capture, version 3: JSON, a newline, the arrays it counts. What has a ``reason`` was not captured."""
    if reason is not None:
        prompts, choices = [[] for _ in prompts], []
    document = {
        "v": 3,
        "reason": reason,
        "prompts": [len(prompt) for prompt in prompts],
        "choices": [
            {
                "index": c.index,
                "prompt": c.prompt,
                "ids": len(c.ids),
                "logprobs": len(c.logprobs),
                "finish": c.finish,
                "stop": c.stop,
            }
            for c in choices
        ],
        "sampling": sampling,
    }
    numbers = [_packed("i", prompt) for prompt in prompts]
    for choice in choices:
        numbers += [_packed("i", choice.ids), _packed("f", choice.logprobs)]
    return json.dumps(document, separators=(",", ":")).encode() + b"\n" + b"".join(numbers)


def _packed(code: str, numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}{code}", *numbers)


def refused(request: dict[str, Any]) -> str | None:
    """Why what this request generates cannot be trained on."""
    if request.get("use_beam_search"):
        return "beam search: its tokens are chosen, not sampled"
    if multimodal(request.get("messages") or ()):
        return "multimodal prompt: its token ids do not hold the whole input"
    if request.get("background"):
        return "background: the answer is generated after the response"
    if request.get("echo") and request.get("max_tokens") == 0:
        return "echo with max_tokens 0: the sampled token is not delivered"
    return None


def frame(nonce: str, captured: bytes) -> bytes:
    return b"\x1e%b %d\n%b" % (nonce.encode(), len(captured), captured)


def sampling(request: dict[str, Any], limit: int) -> dict[str, Any]:
    """The effective sampling parameters: the request's, else vLLM's defaults. ``limit`` is that of tokens."""
    defaults: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": None,
        "n": 1,
        "min_tokens": 0,
    }
    found = {name: value if (given := request.get(name)) is None else given for name, value in defaults.items()}
    return {
        **found,
        "max_tokens": limit,
        "logit_bias": bool(request.get("logit_bias")),
        "structured": structured(request),
        "logits_processors": False,
    }
