"""The openai package for Python: sync, async, streams, tools, structured output, raw responses, errors."""

from __future__ import annotations

import json

import pytest

from storage.states import CallOutcome
from tests.clients.program import CALLS
from tests.clients.stage import Part, Played, Stage, assert_recorded, assert_same, assert_tokens, chain

pytestmark = pytest.mark.clients

PARTS = [
    Part("plain", chain(CALLS), ends=True),
    Part("async", chain(CALLS), "url", ends=True),
    Part("stream", chain(CALLS), "metadata", ends=True),
    Part("async stream", (None,)),
    Part("structured", chain(2), ends=True),
    Part("raw", chain(2)),
    Part("errors", (None,) * 6),
    Part("busy", (None, None), headers={"x-fake-fault-first": "rate-limit:0.1"}),
    Part("leaves", (None,), headers={"x-fake-fault": "stall:4"}),
    Part("models"),
]


@pytest.fixture(scope="module")
def played(stage: Stage) -> dict[str, Played]:
    return stage.play("openai_python", PARTS)


@pytest.mark.parametrize("scene", ["plain", "async", "stream"])
def test_a_conversation_with_tools(stage: Stage, played: dict[str, Played], scene: str) -> None:
    found = assert_same(played[scene])
    calls = assert_recorded(stage, played[scene])
    assert [call.choices[0].finish for call in calls] == ["stop"] * 5  # as the engine says it
    if scene != "stream":
        messages = [answer["choices"][0]["message"] for answer in found]
        assert [len(message["tool_calls"] or ()) for message in messages] == [2, 0, 1, 1, 0]
        assert "4 °C in Oslo" in messages[-1]["content"]


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
    direct, proxied = (found["transcript"] for found in (played["raw"].direct, played["raw"].proxied))
    calls = assert_recorded(stage, played["raw"])
    for at, call in zip((1, 5), calls, strict=True):
        ours = {"x-call-id": call.id, "x-session-id": played["raw"].session, "x-policy-version": "policy@0"}
        assert proxied[at] == direct[at] | ours
    assert proxied[4:5] + proxied[6:] == direct[4:5] + direct[6:]
    assert (proxied[0], proxied[2:4]) == (direct[0], direct[2:4])


def test_errors_are_those_of_vllm(stage: Stage, played: dict[str, Played]) -> None:
    found = assert_same(played["errors"])
    assert [error[0] for error in found] == ["NotFoundError"] * 2 + ["BadRequestError"] * 4
    assert found[0][2].startswith("Error code: 404 - The model `no-such-model` does not exist.")
    calls = stage.calls(played["errors"])
    assert {call.outcome for call in calls} == {CallOutcome.UPSTREAM_ERROR}


def test_a_busy_server_is_asked_again_by_the_package(stage: Stage, played: dict[str, Played]) -> None:
    assert assert_same(played["busy"])[:2] == [1, 200]
    first, second = stage.calls(played["busy"])
    assert (first.outcome, second.outcome) == (CallOutcome.UPSTREAM_ERROR, CallOutcome.COMPLETE)
    assert first.not_trainable == "vLLM answered with status 429"
    assert_tokens(second, json.loads(stage.recorded.row(second.seq)["request"]))


def test_a_stream_that_is_left(stage: Stage, played: dict[str, Played]) -> None:
    assert_same(played["leaves"])
    (call,) = stage.calls(played["leaves"])
    assert call.outcome is CallOutcome.CLIENT_GONE
    assert stage.fake.calls()[-1].cancelled.wait(5)


def test_models_list_the_aliases_beside_vllms_own(played: dict[str, Played]) -> None:
    direct, proxied = (found["transcript"] for found in (played["models"].direct, played["models"].proxied))
    assert (direct, proxied) == (["base-model"], ["agent", "base-model"])
