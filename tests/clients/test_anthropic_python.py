"""The anthropic package for Python: tools, streams, its own loop over tools, raw responses, errors."""

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
    Part("tools", chain(3), "none"),
    Part("raw", chain(1), "metadata"),
    Part("errors", (None,) * 4),
    Part("busy", (None, None), headers={"x-fake-fault-first": "rate-limit:0.1"}),
    Part("leaves", (None,), headers={"x-fake-fault": "stall:4"}),
    Part("count"),
]


@pytest.fixture(scope="module")
def played(stage: Stage) -> dict[str, Played]:
    return stage.play("anthropic_python", PARTS)


@pytest.mark.parametrize("scene", ["plain", "stream"])
def test_a_conversation_with_tools(stage: Stage, played: dict[str, Played], scene: str) -> None:
    found = assert_same(played[scene])
    assert_recorded(stage, played[scene])
    answers = [one for one in found if one["type"] == "message"]
    uses = [[block["type"] for block in answer["content"]] for answer in answers]
    use, text = ["tool_use"], ["text"]
    assert uses == [use * 2, text, use, use, text]
    assert "4 °C in Oslo" in answers[-1]["content"][0]["text"]


def test_the_packages_own_loop_over_tools(stage: Stage, played: dict[str, Played]) -> None:
    answers = assert_same(played["tools"])
    assert [answer["stop_reason"] for answer in answers] == ["tool_use", "tool_use", "end_turn"]
    assert_recorded(stage, played["tools"])


def test_raw_responses_have_our_headers_and_nothing_else(stage: Stage, played: dict[str, Played]) -> None:
    assert_only_our_headers(stage, played["raw"])
    assert_recorded(stage, played["raw"])


def test_errors_are_those_of_vllm(stage: Stage, played: dict[str, Played]) -> None:
    found = assert_same(played["errors"])
    assert [error[0] for error in found] == ["NotFoundError"] * 2 + ["BadRequestError"] * 2
    assert {call.outcome for call in stage.calls(played["errors"])} == {CallOutcome.UPSTREAM_ERROR}


def test_a_busy_server_is_asked_again_by_the_package(stage: Stage, played: dict[str, Played]) -> None:
    assert assert_same(played["busy"])["stop_reason"] == "tool_use"
    first, second = stage.calls(played["busy"])
    assert (first.outcome, second.outcome) == (CallOutcome.UPSTREAM_ERROR, CallOutcome.COMPLETE)
    assert_tokens(stage, second)


def test_a_stream_that_is_left(stage: Stage, played: dict[str, Played]) -> None:
    assert_same(played["leaves"])
    (call,) = stage.calls(played["leaves"])
    assert call.outcome is CallOutcome.CLIENT_GONE


def test_tokens_are_counted(played: dict[str, Played]) -> None:
    assert assert_same(played["count"])["input_tokens"] == 23
