"""The openai package for Node: tools, streams, its own loop over tools, raw responses, errors."""

from __future__ import annotations

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
    Part("stream", chain(CALLS), "url", ends=True),
    Part("responses", chain(CALLS), ends=True),
    Part("responses stream", chain(CALLS), ends=True),
    Part("tools", chain(3), "none"),
    Part("raw", (None,)),
    Part("errors", (None, None)),
    Part("busy", (None, None), headers={"x-fake-fault-first": "rate-limit:0.1"}),
    Part("leaves", (None,), headers={"x-fake-fault": "stall:4"}),
]


@pytest.fixture(scope="module")
def played(stage: Stage) -> dict[str, Played]:
    return stage.play("openai_node", PARTS)


@pytest.mark.parametrize("scene", ["plain", "stream"])
def test_a_conversation_with_tools(stage: Stage, played: dict[str, Played], scene: str) -> None:
    found = assert_same(played[scene])
    assert_recorded(stage, played[scene])
    if scene == "plain":
        messages = [answer["choices"][0]["message"] for answer in found]
        assert [len(message.get("tool_calls", ())) for message in messages] == [2, 0, 1, 1, 0]
        assert "4 °C in Oslo" in messages[-1]["content"]


@pytest.mark.parametrize("scene", ["responses", "responses stream"])
def test_a_conversation_by_responses(stage: Stage, played: dict[str, Played], scene: str) -> None:
    found = assert_same(played[scene])
    assert_recorded(stage, played[scene])
    responses = [one["response"] for one in found if one.get("type") == "response.completed"] or found
    kinds = [[item["type"] for item in response["output"]] for response in responses]
    call, text = ["function_call"], ["message"]
    assert kinds == [call * 2, text, call, call, text]


def test_the_packages_own_loop_over_tools(stage: Stage, played: dict[str, Played]) -> None:
    text, messages = assert_same(played["tools"])
    assert "4 °C in Oslo" in text
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert_recorded(stage, played["tools"])


def test_raw_responses_have_our_headers_and_nothing_else(stage: Stage, played: dict[str, Played]) -> None:
    assert_only_our_headers(stage, played["raw"])
    assert_recorded(stage, played["raw"])


def test_errors_are_those_of_vllm(stage: Stage, played: dict[str, Played]) -> None:
    found = assert_same(played["errors"])
    assert [error[0] for error in found] == ["NotFoundError", "BadRequestError"]
    calls = stage.calls(played["errors"])
    assert {call.outcome for call in calls} == {CallOutcome.UPSTREAM_ERROR}


def test_a_busy_server_is_asked_again_by_the_package(stage: Stage, played: dict[str, Played]) -> None:
    assert assert_same(played["busy"])["choices"][0]["finish_reason"] == "stop"
    first, second = stage.calls(played["busy"])
    assert (first.outcome, second.outcome) == (CallOutcome.UPSTREAM_ERROR, CallOutcome.COMPLETE)
    assert_tokens(stage, second)


def test_a_stream_that_is_left(stage: Stage, played: dict[str, Played]) -> None:
    assert_same(played["leaves"])
    (call,) = stage.calls(played["leaves"])
    assert call.outcome is CallOutcome.CLIENT_GONE
