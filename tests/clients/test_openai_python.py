"""The openai package for Python: sync, async, streams, tools, structured output, raw responses, errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.states import CallOutcome
from tests.clients.program import CALLS
from tests.clients.stage import (
    Part,
    Played,
    Stage,
    assert_only_our_headers,
    assert_recorded,
    assert_same,
    assert_tokens,
    chain,
)

pytestmark = pytest.mark.clients

PARTS = [
    Part("plain", chain(CALLS), ends=True),
    Part("async", chain(CALLS), "url", ends=True),
    Part("parallel", chain(CALLS), "none", ends=True),
    Part("stream", chain(CALLS), "metadata", ends=True),
    Part("async stream", (None,)),
    Part("structured", chain(2), ends=True),
    Part("raw", chain(2)),
    Part("errors", (None,) * 6),
    Part("busy", (None, None), headers={"x-fake-fault-first": "rate-limit:0.1"}),
    Part("leaves", (None,), headers={"x-fake-fault": "stall:4"}),
    Part("completions", (None, 0)),
    Part("embeddings"),
    Part("models"),
    Part("responses", chain(CALLS), ends=True),
    Part("responses by id", chain(CALLS), "metadata", ends=True),
    Part("responses stream", chain(CALLS), "url", ends=True),
    Part("responses structured", chain(1)),
]


@pytest.fixture(scope="module")
def played(stage: Stage) -> dict[str, Played]:
    return stage.play("openai_python", PARTS)


@pytest.mark.parametrize("scene", ["plain", "async", "stream"])
def test_a_conversation_with_tools(stage: Stage, played: dict[str, Played], scene: str) -> None:
    found = assert_same(played[scene])
    assert_recorded(stage, played[scene])
    if scene != "stream":
        messages = [answer["choices"][0]["message"] for answer in found]
        assert [len(message["tool_calls"] or ()) for message in messages] == [2, 0, 1, 1, 0]
        assert "4 °C in Oslo" in messages[-1]["content"]


def test_agents_without_tags_are_kept_apart(stage: Stage, played: dict[str, Played]) -> None:
    found = assert_same(played["parallel"])
    assert [len(conversation) for conversation in found] == [CALLS] * 4
    sessions = set()
    for number in range(4):
        one = replace(played["parallel"], session=f"{played['parallel'].session} {number}")
        assert_recorded(stage, one)
        sessions.add(stage.session(one).key)
    assert len(sessions) == 4


def test_two_choices_in_an_async_stream(stage: Stage, played: dict[str, Played]) -> None:
    found = assert_same(played["async stream"])
    assert {choice["index"] for chunk in found for choice in chunk["choices"]} == {0, 1}
    (call,) = assert_recorded(stage, played["async stream"])
    assert len(call.choices) == 2


def test_structured_output(stage: Stage, played: dict[str, Played]) -> None:
    report, again = assert_same(played["structured"])
    assert report == again == {"city": "Report from Lyon", "degrees": 16, "sunny": True}
    calls = assert_recorded(stage, played["structured"])
    assert [call.sampling["structured"] for call in calls] == [True, True]


def test_raw_responses_have_our_headers_and_nothing_else(stage: Stage, played: dict[str, Played]) -> None:
    assert_only_our_headers(stage, played["raw"])
    assert_recorded(stage, played["raw"])


def test_errors_are_those_of_vllm(stage: Stage, played: dict[str, Played]) -> None:
    found = assert_same(played["errors"])
    assert [error[0] for error in found] == ["NotFoundError"] * 2 + ["BadRequestError"] * 4
    assert found[0][2] == "Error code: 404 - The model `no-such-model` does not exist. Valid aliases: base-model."
    calls = stage.calls(played["errors"])
    assert {call.outcome for call in calls} == {CallOutcome.UPSTREAM_ERROR}


def test_a_busy_server_is_asked_again_by_the_package(stage: Stage, played: dict[str, Played]) -> None:
    assert assert_same(played["busy"])[:2] == [1, 200]
    first, second = stage.calls(played["busy"])
    assert (first.outcome, second.outcome) == (CallOutcome.UPSTREAM_ERROR, CallOutcome.COMPLETE)
    assert first.not_trainable == "vLLM answered with status 429"
    assert_tokens(stage, second)


def test_a_stream_that_is_left(stage: Stage, played: dict[str, Played]) -> None:
    assert_same(played["leaves"])
    (call,) = stage.calls(played["leaves"])
    assert call.outcome is CallOutcome.CLIENT_GONE
    left = [received for received in stage.fake.calls() if received.header("x-fake-fault") == "stall:4"]
    assert all(received.cancelled.wait(60) for received in left)


@pytest.mark.parametrize("scene", ["responses", "responses by id", "responses stream"])
def test_a_conversation_by_responses(stage: Stage, played: dict[str, Played], scene: str) -> None:
    found = assert_same(played[scene])
    assert_recorded(stage, played[scene])
    responses = [one["response"] for one in found if one.get("type") == "response.completed"] or found
    kinds = [[item["type"] for item in response["output"]] for response in responses]
    call, text = ["function_call"], ["message"]
    assert kinds == [call * 2, text, call, call, text]
    assert "4 °C in Oslo" in responses[-1]["output"][0]["content"][0]["text"]


def test_structured_output_by_responses(stage: Stage, played: dict[str, Played]) -> None:
    assert assert_same(played["responses structured"]) == {"city": "Report from Lyon", "degrees": 16}
    (call,) = assert_recorded(stage, played["responses structured"])
    assert call.sampling["structured"]


def test_completions(stage: Stage, played: dict[str, Played]) -> None:
    assert len(assert_same(played["completions"])[0]["choices"]) == 2
    first, second = assert_recorded(stage, played["completions"])
    assert (len(first.choices), len(second.choices)) == (2, 1)


def test_embeddings(stage: Stage, played: dict[str, Played]) -> None:
    floats, packed = assert_same(played["embeddings"])
    assert len(floats["data"]) == 2
    assert all(isinstance(number, float) for number in packed["data"][0]["embedding"])


def test_models_list_the_aliases_beside_vllms_own(played: dict[str, Played]) -> None:
    direct, proxied = (found["transcript"] for found in (played["models"].direct, played["models"].proxied))
    assert (direct, proxied) == (["base-model"], ["agent", "base-model"])
