"""A round of the bench of learning through the real proxy, with a fake vLLM behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.agents.runner import Agent
from scripts.bench.learning.playing import ATTEMPTS, Table, play
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
            given = [row["value"] for row in recorded.db.all("SELECT value FROM rewards")]
            recorded.db.close()
        finally:
            proxy.stop()
    assert {row["scenario"]: row["n"] for row in groups} == dict.fromkeys(task.scenarios, ATTEMPTS)
    assert calls == len(found) * turns
    assert sorted(given) == (sorted(reward for reward in found if reward is not None) if rewarding else [])
    assert None not in found


def test_a_session_that_fails_is_no_reward_of_0(tmp_path: Path) -> None:
    agent = Agent("Words.", ["yes-no-maybe-1"], TASKS["word"].agent.play)
    with FakeVllm() as fake:
        proxy = RunningProxy(tmp_path / "data", (f"http://localhost:{fake.port}",), fake.secret)
        try:
            assert play(Table(proxy.url, agent, rewarding=True), "no-such-model") == [None] * ATTEMPTS
        finally:
            proxy.stop()
