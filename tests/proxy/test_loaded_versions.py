"""Which versions vLLM holds: those that somebody needs, and no others for long."""

from __future__ import annotations

import time

import pytest

from proxy import versions
from storage.states import VersionState
from tests.fake_vllm import FakeVllm
from tests.proxy.adapters import Trainer, reaches
from tests.proxy.conftest import StartProxy
from tests.proxy.running import Recorded, answerer, tags, until


class Clock:
    """The time of the versions: it passes when the test says so."""

    def __init__(self) -> None:
        self._now = 0.0
        self._asked = 0
        self.time = time.time

    def monotonic(self) -> float:
        self._asked += 1
        return self._now

    def pass_by(self, seconds: float) -> None:
        """Returns when the versions have been looked after with the new time."""
        self._now += seconds
        asked = self._asked
        until(lambda: self._asked >= asked + 2)


def test_old_versions_leave_vllm_unless_a_session_needs_them(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy()
    trainer.train(1)
    reaches(trainer, 1, VersionState.LIVE)
    until(lambda: answerer(proxy, **{"x-session-id": "s"})[0] == "policy@1")
    for number in (2, 3, 4):
        trainer.train(number, parent=number - 1)
        reaches(trainer, number, VersionState.LIVE)
    reaches(trainer, 2, VersionState.RETIRED)
    until(lambda: sorted(own_fake.state.adapters) == ["policy@1", "policy@3", "policy@4"])
    assert answerer(proxy, **{"x-session-id": "s"}) == ("policy@1", "policy@1")
    proxy.client.post("/v1/sessions/s/end")
    reaches(trainer, 1, VersionState.RETIRED)
    until(lambda: sorted(own_fake.state.adapters) == ["policy@3", "policy@4"])


def test_a_session_that_opens_again_gets_its_retired_version_again(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy(idle=0.05)
    recorded = Recorded(proxy.data)
    trainer.train(1)
    reaches(trainer, 1, VersionState.LIVE)
    until(lambda: answerer(proxy, **tags("s"))[0] == "policy@1")
    until(lambda: recorded.closed("s"))
    for number in (2, 3):
        trainer.train(number, parent=number - 1)
        reaches(trainer, number, VersionState.LIVE)
    reaches(trainer, 1, VersionState.RETIRED)
    answer = proxy.chat(headers=tags("s"))
    assert answer.status_code in (200, 503)
    until(lambda: proxy.chat(headers=tags("s")).status_code == 200)
    assert answerer(proxy, **tags("s")) == ("policy@1", "policy@1")
    recorded.db.close()


def test_a_parent_that_a_probe_needed_leaves_vllm_again(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    start_proxy()
    for number, parent in ((1, 0), (2, 1), (3, 2)):
        trainer.train(number, parent=parent)
        reaches(trainer, number, VersionState.LIVE)
    until(lambda: sorted(own_fake.state.adapters) == ["policy@2", "policy@3"])
    trainer.train(4, parent=1)
    assert reaches(trainer, 4, VersionState.LIVE).probe["verdict"] == "moved as trained"
    until(lambda: sorted(own_fake.state.adapters) == ["policy@3", "policy@4"])


def test_a_retired_version_that_is_named_is_loaded_for_a_while(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(versions, "time", clock)
    proxy = start_proxy()
    for number in (1, 2, 3):
        trainer.train(number, parent=number - 1)
        reaches(trainer, number, VersionState.LIVE)
    until(lambda: sorted(own_fake.state.adapters) == ["policy@2", "policy@3"])
    until(lambda: answerer(proxy, "policy@1") == ("policy@1", "policy@1"))
    # Each call that names it begins the while anew.
    for _ in range(3):
        clock.pass_by(200)
        assert answerer(proxy, "policy@1") == ("policy@1", "policy@1")
    clock.pass_by(301)
    until(lambda: sorted(own_fake.state.adapters) == ["policy@2", "policy@3"])
