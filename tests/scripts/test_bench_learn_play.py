"""A round of the bench of learning through the real proxy, with a fake vLLM behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.agents.runner import Agent
from scripts.bench.learning.playing import ATTEMPTS, OLDER, Table, play
from scripts.bench.learning.tasks import TASKS
from tests.fake_vllm import FakeVllm
from tests.proxy.running import Recorded, RunningProxy, until


@pytest.mark.parametrize("rewarding", [True, False])
@pytest.mark.parametrize(("name", "turns"), [("word2", 1), ("game", 3)])
def test_a_round_is_recorded_with_its_rewards(tmp_path: Path, name: str, turns: int, rewarding: bool) -> None:
    task = TASKS[name]
    with FakeVllm() as fake:
        proxy = RunningProxy(tmp_path / "data", (f"http://localhost:{fake.port}",), fake.secret)
        try:
            found = play(Table(proxy.url, task.agent, rewarding), "agent")
            recorded = Recorded(proxy.data)
            closed = "SELECT count(*) FROM sessions WHERE state = 'closed'"
            until(lambda: recorded.db.number(closed) == len(found))
            # The rewards are taken in behind the sessions' ends.
            until(lambda: recorded.db.number("SELECT count(*) FROM rewards") == (len(found) if rewarding else 0))
            calls = recorded.db.number("SELECT count(*) FROM calls")
            groups = recorded.db.all("SELECT scenario, count(*) AS n FROM sessions GROUP BY scenario")
            versions = recorded.db.all("SELECT DISTINCT model, calls.version FROM calls ORDER BY model")
            given = [row["value"] for row in recorded.db.all("SELECT value FROM rewards")]
            recorded.db.close()
        finally:
            proxy.stop()
    assert {row["scenario"]: row["n"] for row in groups} == dict.fromkeys(task.scenarios, ATTEMPTS)
    assert calls == len(found) * turns
    ended = [session for session in found if session is not None]
    assert len(ended) == len(found)
    assert sorted(given) == (sorted(session.reward for session in ended) if rewarding else [])
    assert {session.version for session in ended} == {"policy@0"}
    assert [(row["model"], row["version"]) for row in versions] == [("agent", 0)]


def test_some_sessions_of_each_scenario_ask_for_the_older_version(tmp_path: Path) -> None:
    task = TASKS["word"]
    with FakeVllm() as fake:
        proxy = RunningProxy(tmp_path / "data", (f"http://localhost:{fake.port}",), fake.secret)
        try:
            # The base model beside a version that was never made: those that ask for it fail.
            assert play(Table(proxy.url, task.agent, rewarding=False), "agent", "policy@7").count(None) == OLDER * 6
            found = play(Table(proxy.url, task.agent, rewarding=False), "policy@7", "agent")
        finally:
            proxy.stop()
    ended = [session for session in found if session is not None]
    assert {name: [one.scenario for one in ended].count(name) for name in task.scenarios} == dict.fromkeys(
        task.scenarios, OLDER
    )


def test_a_session_that_fails_is_no_reward_of_0(tmp_path: Path) -> None:
    agent = Agent("Words.", ["yes-no-maybe-1"], TASKS["word"].agent.play)
    with FakeVllm() as fake:
        proxy = RunningProxy(tmp_path / "data", (f"http://localhost:{fake.port}",), fake.secret)
        try:
            assert play(Table(proxy.url, agent, rewarding=True), "no-such-model") == [None] * ATTEMPTS
        finally:
            proxy.stop()
