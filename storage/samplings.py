"""Which calls were sampled so that the engine's logprobs are not those of the policy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RAW_OR_PROCESSED = "raw or processed"
"""`logprobs` of a sampling whose server does not tell which of both it gives."""
STATED = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""What a request may leave to the server, which takes the model's generation_config; None: and does not tell it."""
_RESHAPED = {
    "structured": "a grammar",
    "logit_bias": "a logit bias",
    "logits_processors": "logits processors",
}
_NEUTRAL = {
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,  # until then the end token is masked
}


def why_recomputed(sampling: Mapping[str, Any]) -> str | None:
    """Why the trainer's own logprobs take the place of the engine's, in words; None where the engine's are exact.

    ``sampling``: a call's, as the capture tells it.
    """
    telling = sampling.get("logprobs") != RAW_OR_PROCESSED
    unknown = [] if telling else [name for name in STATED if sampling[name] is None]
    if unknown:
        return f"the request leaves {', '.join(unknown)} to vLLM, which does not tell what it took"
    if sampling.get("temperature") == 0:
        return "sampled under temperature 0"
    reshaped = [text for name, text in _RESHAPED.items() if sampling.get(name)]
    reshaped += [name for name, neutral in _NEUTRAL.items() if sampling.get(name, neutral) not in (None, neutral)]
    if reshaped:
        return f"sampled under {', '.join(reshaped)}"
    if telling:
        return None
    if sampling["structured"] is None:
        return "vLLM does not tell whether it held the tool calls to a grammar"
    if (sampling["temperature"], sampling["top_p"], sampling["top_k"]) != (1, 1, 0):
        return "vLLM does not tell whether its logprobs are those after temperature, top_p and top_k"
    return None
