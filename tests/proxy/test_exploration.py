"""Exploration: which calls are sampled otherwise than their client asks, and the warning where it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.settings import SamplingSettings
from tests.fake_vllm import FakeVllm
from tests.proxy.adapters import Trainer
from tests.proxy.conftest import StartProxy
from tests.proxy.running import Recorded, RunningProxy, tags, until

HOT = SamplingSettings(mode="explore", temperature=2.0, top_p=0.9, top_k=50)


def sampled(data: Path, session: str) -> dict[str, Any]:
    """The effective sampling of a session's one call."""
    recorded = Recorded(data)
    try:
        (call,) = recorded.calls(session)
    finally:
        recorded.db.close()
    return {name: call.sampling[name] for name in ("temperature", "top_p", "top_k", "min_p")}


@pytest.fixture
def exploring(start_proxy: StartProxy) -> RunningProxy:
    return start_proxy(sampling=SamplingSettings(mode="explore"))


AS_ASKED: dict[str, Any] = {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1}
EXPLORED = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def test_by_default_the_client_decides(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    assert proxy.chat(headers=tags("s"), **AS_ASKED).status_code == 200
    assert sampled(proxy.data, "s") == AS_ASKED


def test_a_greedy_agent_is_explored_and_vllm_gets_its_bytes(exploring: RunningProxy, own_fake: FakeVllm) -> None:
    assert exploring.chat(headers=tags("s"), **AS_ASKED).status_code == 200
    assert sampled(exploring.data, "s") == EXPLORED
    assert b'"temperature":0,"top_p":0.5' in own_fake.calls()[-1].body


def test_each_parameter_can_be_set(start_proxy: StartProxy) -> None:
    proxy = start_proxy(sampling=HOT)
    proxy.chat(headers=tags("s"), **AS_ASKED)
    assert sampled(proxy.data, "s") == {"temperature": 2.0, "top_p": 0.9, "top_k": 50, "min_p": 0.0}


def test_evaluations_and_named_models_are_never_explored(exploring: RunningProxy) -> None:
    exploring.chat(headers=tags("eval", x_split="eval"), **AS_ASKED)
    exploring.chat(model="policy@0", headers=tags("version"), **AS_ASKED)
    exploring.chat(model="base-model", headers=tags("base"), **AS_ASKED)
    for session in ("eval", "version", "base"):
        assert sampled(exploring.data, session) == AS_ASKED, session


def test_a_session_is_for_evaluation_as_a_whole(exploring: RunningProxy) -> None:
    exploring.chat("one", headers=tags("evaluated", x_split="eval"), temperature=0)
    exploring.chat("two", headers=tags("evaluated"), temperature=0)
    recorded = Recorded(exploring.data)
    assert [call.sampling["temperature"] for call in recorded.calls("evaluated", 2)] == [0, 0]
    recorded.db.close()


def test_every_version_is_explored(exploring: RunningProxy) -> None:
    Trainer(exploring.data).train(1)
    until(lambda: exploring.status()["live"] == "policy@1")
    exploring.chat(headers=tags("s"), **AS_ASKED)
    assert sampled(exploring.data, "s") == EXPLORED


def no_exploration(proxy: RunningProxy) -> list[str]:
    return [warning for warning in proxy.status()["warnings"] if warning.startswith("no exploration")]


def test_scenarios_whose_sessions_repeat_each_other_are_told(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    for number in range(4):
        assert no_exploration(proxy) == []
        proxy.chat(temperature=0, headers=tags(f"s{number}", scenario="a game", x_session_end="true"))
        proxy.chat(f"question {number}", temperature=0, headers=tags(f"t{number}", x_session_end="true"))
    (warning,) = until(lambda: no_exploration(proxy))
    assert "'a game' (1 different of 4) repeat each other; they are sampled at temperature 0" in warning
    assert '`[sampling] mode = "explore"`' in warning
    assert "'c'" not in warning
