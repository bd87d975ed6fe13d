"""Which versions vLLM holds: those that somebody needs, and no others for long."""

from __future__ import annotations

import time

import pytest

from proxy import versions
from storage.states import VersionState
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.adapters import Trainer, reaches
from tests.proxy.conftest import StartProxy
from tests.proxy.running import CHAT, Recorded, answerer, request, tags, until

_LOAD = "/v1/load_lora_adapter"


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
    assert answerer(proxy, "policy@1") == ("policy@1", "policy@1")  # the call waits for it
    # Each call that names it begins the while anew.
    for _ in range(3):
        clock.pass_by(200)
        assert answerer(proxy, "policy@1") == ("policy@1", "policy@1")
    clock.pass_by(301)
    until(lambda: sorted(own_fake.state.adapters) == ["policy@2", "policy@3"])


def test_a_client_that_leaves_while_its_version_is_loaded_leaves_nothing(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy(limit={"calls": 1})
    for number in (1, 2, 3):
        trainer.train(number, parent=number - 1)
        reaches(trainer, number, VersionState.LIVE)
    until(lambda: sorted(own_fake.state.adapters) == ["policy@2", "policy@3"])
    loads, load = len(own_fake.calls(_LOAD)), own_fake.failing(_LOAD, "slow:600")
    with load, raw.connect(proxy.url) as connection:
        raw.send(connection, CHAT, request(model="policy@1"), tags("s"))
        until(lambda: len(own_fake.calls(_LOAD)) > loads)
        assert proxy.client.get("/v1/models").status_code == 429, "the call is under way"
    until(lambda: proxy.client.get("/v1/models").status_code == 200)
    assert own_fake.calls(CHAT) == []


def test_a_version_that_cannot_be_loaded_is_not_waited_for(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy()
    for number in (1, 2, 3):
        trainer.train(number, parent=number - 1)
        reaches(trainer, number, VersionState.LIVE)
    until(lambda: sorted(own_fake.state.adapters) == ["policy@2", "policy@3"])
    with own_fake.failing(_LOAD, "bad-gateway"):
        refused = proxy.chat(model="policy@1")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "version 1 is being loaded" in refused.json()["error"]["message"]
    until(lambda: proxy.chat(model="policy@1").status_code == 200)
