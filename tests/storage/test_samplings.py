from typing import Any

import pytest

from storage.samplings import RAW_OR_PROCESSED, why_recomputed

PLAIN = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "repetition_penalty": 1.0, "min_tokens": 0, "logit_bias": False, "structured": False, "logits_processors": False,
}  # fmt: skip
FOREIGN = {**PLAIN, "logprobs": RAW_OR_PROCESSED}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"temperature": 0.7, "top_p": 0.9, "top_k": 20}, None),
        ({"temperature": 0.0}, "sampled under temperature 0"),
        ({"temperature": 0}, "sampled under temperature 0"),
        ({"structured": True}, "sampled under a grammar"),
        ({"logit_bias": True}, "sampled under a logit bias"),
        ({"logits_processors": True}, "sampled under logits processors"),
        ({"min_p": 0.1}, "sampled under min_p"),
        ({"presence_penalty": 0.5}, "sampled under presence_penalty"),
        ({"frequency_penalty": -0.5}, "sampled under frequency_penalty"),
        ({"repetition_penalty": 1.1}, "sampled under repetition_penalty"),
        ({"min_tokens": 5}, "sampled under min_tokens"),
        ({"structured": True, "min_p": 0.1}, "sampled under a grammar, min_p"),
        ({"repetition_penalty": None, "min_p": None, "seed": 7, "n": 3}, None),
    ],
)
def test_sampling_that_makes_the_engines_logprobs_those_of_another_distribution(
    changes: dict[str, Any], reason: str | None
) -> None:
    assert why_recomputed(PLAIN | changes) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"temperature": 0.0}, "sampled under temperature 0"),
        ({"top_p": None, "min_p": None}, "the request leaves top_p, min_p to vLLM, which does not tell what it took"),
        ({"temperature": 0.7}, "vLLM does not tell whether its logprobs are those after temperature, top_p and top_k"),
        ({"top_k": 5}, "vLLM does not tell whether its logprobs are those after temperature, top_p and top_k"),
        ({"structured": None}, "vLLM does not tell whether it held the tool calls to a grammar"),
    ],
)
def test_sampling_of_a_server_that_does_not_tell_all(changes: dict[str, Any], reason: str | None) -> None:
    assert why_recomputed(FOREIGN | changes) == reason
