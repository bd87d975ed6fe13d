"""Agent frameworks: openai-agents, pydantic-ai, langchain-openai and smolagents, each with its own loop over tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from storage import rewards
from tests.clients.program import CALLS
from tests.clients.stage import Part, Played, Stage, assert_recorded, assert_same, chain
from tests.proxy.running import until

pytestmark = pytest.mark.clients

_HEAD_AND_SUB_AGENT = (None, None, 1, 2, 0)

PARTS = {
    "openai_agents": [
        Part("chat", chain(CALLS), "none"),
        Part("stream", chain(2), "url"),
        Part("sub-agent", _HEAD_AND_SUB_AGENT),
        Part("structured", chain(1)),
        Part("responses", chain(CALLS), "metadata"),
    ],
    "pydantic_ai": [
        Part("chat", chain(CALLS), "metadata"),
        Part("stream", chain(2)),
        Part("output tool", chain(2)),
        Part("native output", chain(1)),
        Part("responses", chain(CALLS)),
    ],
    "langchain_openai": [
        Part("chat", chain(CALLS), "none", ends=True),
        Part("stream", chain(CALLS), ends=True),
        Part("async", (None, None)),
        Part("structured", chain(2)),
        Part("responses", chain(CALLS), "url", ends=True),
    ],
    "smolagents": [
        Part("tools", chain(5), "url"),
        Part("stream", chain(5)),
        Part("code", chain(1), headers={"X-Split": "eval"}),
    ],
}
CASES = [pytest.param(client, part.scene, id=f"{client}: {part.scene}") for client in PARTS for part in PARTS[client]]


Play = Callable[[str, str], Played]


@pytest.fixture(scope="module")
def play(stage: Stage) -> Play:
    """What a client's scene gave. All scenes of a client are played at once, when the first is asked for."""
    whole = cache(lambda client: stage.play(client, PARTS[client]))
    return lambda client, scene: whole(client)[scene]


@pytest.mark.parametrize(("client", "scene"), CASES)
def test_a_framework_sees_vllm_and_is_recorded(play: Play, stage: Stage, client: str, scene: str) -> None:
    played = play(client, scene)
    assert_same(played)
    assert_recorded(stage, played)


def test_a_sub_agent_is_a_branch_under_its_name(play: Play, stage: Stage) -> None:
    calls = stage.calls(play("openai_agents", "sub-agent"))
    agents = [stage.recorded.row(call.seq)["agent"] for call in calls]
    assert agents == [None, "forecaster", "forecaster", "forecaster", None]


def test_output_types(play: Play) -> None:
    report = {"city": "Report from Lyon", "degrees": 16}
    assert assert_same(play("openai_agents", "structured"))[0] == report
    assert assert_same(play("pydantic_ai", "output tool"))[0] == {"city": "Lyon", "degrees": 4}
    assert assert_same(play("pydantic_ai", "native output"))[0] == report
    assert assert_same(play("langchain_openai", "structured")) == [report, report]
    assert assert_same(play("smolagents", "code"))[0] == 42


def test_a_client_rewards_a_session_and_ends_it(play: Play, stage: Stage) -> None:
    played = play("smolagents", "stream")
    session = stage.session(played)
    stage.reward_and_end(session.session_id, 0.75)
    closed = until(lambda: stage.recorded.closed(session.session_id))
    assert (closed.closed_by, closed.calls) == ("ended", 5)
    (reward,) = rewards.of_session(stage.recorded.db, session.key)
    assert (reward.source, reward.value) == ("client", 0.75)
