"""Exploration: what an explored call is sampled with, in vLLM's own parameters, and what its client still sees."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from proxy.capture import Exploration as Ordered
from proxy.capture import request_header
from proxy.vllm_plugin.capture import Mark, read_mark
from proxy.vllm_plugin.recording import Call, Exploration
from tests.captures import unpacked

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM imports warns
    from vllm.sampling_params import SamplingParams, SamplingType, StructuredOutputsParams

NONCE = "0123456789abcdef" * 2
SECRET = "s3cret"
AT_ONE = Exploration(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
PROMPT = {"type": "token", "prompt_token_ids": [1]}


def params(**given: Any) -> SamplingParams:
    """As vLLM's endpoints make them."""
    return SamplingParams.from_optional(skip_clone=True, **given)


@pytest.mark.parametrize(
    "ordered", [Ordered(), Ordered(1.7, 0.95, 50), Ordered(temperature=0.01, top_p=1e-05, top_k=151_000)]
)
def test_the_proxys_order_is_what_the_plugin_reads(ordered: Ordered) -> None:
    header = request_header(SECRET, NONCE, "policy@3", ordered).encode()
    expected = Exploration(ordered.temperature, ordered.top_p, ordered.top_k, 0.0)
    assert read_mark([(b"x-slipstream", header)], SECRET.encode()) == Mark(NONCE, "policy@3", expected)


@pytest.mark.parametrize(
    "field",
    [
        "",
        "temperature=1",
        "temperature=1,top_p=1,top_k=0",
        "temperature=-1,top_p=1,top_k=0,min_p=0",
        "temperature=nan,top_p=1,top_k=0,min_p=0",
        "temperature=1,top_p=1,top_k=0.5,min_p=0",
        "temperature=1,top_p=1,top_k=0,min_p=0,seed=3",
        "temperature=1,top_p=1,top_k=0,min_p=0 x",
        "temperature=1,top_p=1,top_k=0,min_p=٠",
    ],
)
def test_an_order_of_another_form_is_no_mark(field: str) -> None:
    assert read_mark([(b"x-slipstream", f"{SECRET} {NONCE} m {field}".encode())], SECRET.encode()) is None


def test_a_greedy_call_is_sampled_and_its_client_does_not_see_it() -> None:
    # top_p and top_k are lost in a greedy call; the order brings its own.
    asked = params(temperature=0, top_p=0.3, top_k=4, seed=11, max_tokens=9, stop=["x"])
    assert asked.sampling_type is SamplingType.GREEDY  # computed once, and kept by vLLM
    call = Call(NONCE, "base", Exploration(2.0, 0.9, 50, 0.0))
    used = call.begin(PROMPT, asked).params
    assert (used.temperature, used.top_p, used.top_k, used.min_p) == (2.0, 0.9, 50, 0.0)
    assert used.sampling_type is SamplingType.RANDOM_SEED
    assert (used.seed, used.max_tokens, used.stop, used.output_text_buffer_length) == (11, 9, ["x"], 0)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.logprobs) == (0, 1.0, 0, None)
    sampling = unpacked(call.payload())["sampling"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"], sampling["seed"]) == (2.0, 0.9, 50, 11)


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.2},
        {"temperature": 1.0, "n": 3},
        {"temperature": 0, "structured_outputs": StructuredOutputsParams(choice=["a", "b"])},
        {"temperature": 0, "presence_penalty": 1.5, "logit_bias": {5: 3.0}, "logprobs": 4},
    ],
)
def test_what_exploration_is_not_about_stays(given: dict[str, Any]) -> None:
    asked = params(**given)
    used = Call(NONCE, "base", AT_ONE).begin(PROMPT, asked).params
    assert (used.temperature, used.top_p, used.top_k, used.min_p) == (1.0, 1.0, 0, 0.0)
    for name in ("n", "structured_outputs", "presence_penalty", "logit_bias", "max_tokens", "output_kind"):
        assert getattr(used, name) == getattr(asked, name), name
    assert used.logprobs == (4 if "logprobs" in given else 0)


def test_the_explored_parameters_are_ones_that_vllm_would_have_taken() -> None:
    used = Call(NONCE, "base", Exploration(2.0, 0.9, 50, 0.0)).begin(PROMPT, params(temperature=0)).params
    used._verify_args()


def test_without_an_order_and_where_nothing_can_be_trained_the_client_decides() -> None:
    assert Call(NONCE, "base").begin(PROMPT, params(temperature=0)).params.temperature == 0
    beams = Call(NONCE, "base", AT_ONE)
    beams.refuse("beam search: its tokens are chosen, not sampled")
    assert beams.begin(PROMPT, params(temperature=0)).params.temperature == 0
