"""From a finished run to the version that answers: loaded, probed, live, or rejected (promises 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from storage.states import VersionState
from tests.fake_vllm import FakeVllm
from tests.fake_vllm.engine import WEIGHTS
from tests.proxy.adapters import Trainer, reaches
from tests.proxy.conftest import StartProxy
from tests.proxy.running import Recorded, answerer, tags, until


def test_a_trained_version_is_loaded_probed_and_live(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy()
    recorded = Recorded(proxy.data)
    assert answerer(proxy) == ("policy@0", "base-model")
    assert answerer(proxy, **{"x-session-id": "old"}) == ("policy@0", "base-model")
    trainer.train(1)
    version = reaches(trainer, 1, VersionState.LIVE)
    assert version.verified_at is not None
    assert version.probe == {
        "verdict": "moved as trained",
        "slope": 1.0,
        "standard_error": 0.0,
        "tokens": 40,
        "reason": None,
    }
    base = trainer.version(0)
    assert base is not None
    assert base.state is VersionState.STANDBY
    # The alias answers new sessions with it; a session keeps its version; a named one answers as asked.
    assert until(lambda: answerer(proxy)[0] == "policy@1")
    assert answerer(proxy) == ("policy@1", "policy@1")
    assert answerer(proxy, **{"x-session-id": "old"}) == ("policy@0", "base-model")
    assert answerer(proxy, "policy@0") == ("policy@0", "base-model")
    assert answerer(proxy, "policy@1") == ("policy@1", "policy@1")
    assert answerer(proxy, "base-model") == ("policy@0", "base-model")
    assert [call.version for call in recorded.calls("old", 2)] == [0, 0]
    loadings = proxy.admin("versions")["loadings"]
    assert [(row["version"], row["upstream"], row["verdict"]) for row in loadings] == [
        (1, own_fake.url, "moved as trained")
    ]
    assert proxy.status()["live"] == "policy@1"
    recorded.db.close()


def test_a_session_stays_with_its_version_over_a_restart(start_proxy: StartProxy, trainer: Trainer) -> None:
    proxy = start_proxy()
    assert answerer(proxy, **{"x-session-id": "s"}) == ("policy@0", "base-model")
    trainer.train(1)
    reaches(trainer, 1, VersionState.LIVE)
    again = start_proxy()
    until(lambda: again.client.get("/ready").status_code == 200)
    assert answerer(again) == ("policy@1", "policy@1")
    assert answerer(again, **{"x-session-id": "s"}) == ("policy@0", "base-model")
    assert answerer(again, **{"x-session-id": "t"}) == ("policy@1", "policy@1")


def test_unknown_versions_and_models(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    for name in ("policy@7", "policy@999999999"):
        answer = proxy.chat(model=name)
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == f"The model `{name}` does not exist."
    # Not of the form of a version: vLLM says what it makes of it.
    for name in ("policy@01", "policy@", "other@1", "policy@-1"):
        answer = proxy.chat(model=name)
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "NotFoundError"


def test_every_foreign_name_is_an_alias_with_a_star(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy(alias=("agent", "*"))
    trainer.train(1)
    reaches(trainer, 1, VersionState.LIVE)
    until(lambda: answerer(proxy)[0] == "policy@1")
    assert answerer(proxy, "gpt-4o") == ("policy@1", "policy@1")
    assert answerer(proxy, "base-model") == ("policy@0", "base-model")
    foreign = proxy.data.parent / "foreign"
    foreign.mkdir()
    (foreign / WEIGHTS).write_bytes(b"not ours")
    own_fake.state.load("foreign", str(foreign))
    until(lambda: "foreign" in [model["id"] for model in proxy.client.get("/v1/models").json()["data"]])
    # It is no version of the policy: none is told, and nothing is trained on it.
    answer = proxy.chat(model="foreign", headers=tags("f"))
    assert answer.json()["choices"][0]["message"]["content"].startswith("foreign answers")
    assert "x-policy-version" not in answer.headers
    recorded = Recorded(proxy.data)
    (call,) = recorded.calls("f")
    assert call.not_trainable == "no tokens were captured"
    recorded.db.close()
    assert [model["id"] for model in proxy.client.get("/v1/models").json()["data"]][:2] == ["agent", "base-model"]


Spoil = Callable[[Trainer, FakeVllm], None]


def _probe_of_another(trainer: Trainer, _: FakeVllm) -> None:
    rows = trainer.probe(1, 2)
    for row, right in zip(rows, trainer.probe(1, 7), strict=True):
        row["new"] = right["new"]
    trainer.train(2, parent=1, probe=rows)


def _served_as_base(trainer: Trainer, fake: FakeVllm) -> None:
    fake.state.served_as_base = True
    trainer.train(2, parent=1)


def _other_weights(trainer: Trainer, _: FakeVllm) -> None:
    folder = trainer.publish(2, parent=1)
    trainer.announce(2, parent=1)
    (folder / WEIGHTS).write_bytes(b"something else")


def _weights_gone(trainer: Trainer, _: FakeVllm) -> None:
    (trainer.publish(2, parent=1) / WEIGHTS).unlink()
    trainer.announce(2, parent=1)


def _no_folder(trainer: Trainer, _: FakeVllm) -> None:
    trainer.announce(2, parent=1)


def _manifest(text: bytes) -> Spoil:
    def spoil(trainer: Trainer, _: FakeVllm) -> None:
        (trainer.publish(2, parent=1) / "manifest.json").write_bytes(text)
        trainer.announce(2, parent=1)

    return spoil


def _probe(row: dict[str, Any]) -> Spoil:
    return lambda trainer, _: (trainer.train(2, parent=1, probe=[row]), None)[1]


def _refused(trainer: Trainer, fake: FakeVllm) -> None:
    fake.fail_next("/v1/load_lora_adapter", "bad-request")
    trainer.train(2, parent=1)


SPOILED: dict[str, tuple[Spoil, str]] = {
    "the probe of another adapter": (_probe_of_another, "the probe failed: slope "),
    "served as the base": (_served_as_base, "the probe failed: slope "),
    "other weights": (_other_weights, "is not the file that was trained: its sha256 is "),
    "no weights": (_weights_gone, "cannot be read"),
    "no folder": (_no_folder, "cannot be read"),
    "an empty manifest": (_manifest(b""), "cannot be read"),
    "a manifest of another kind": (_manifest(b'{"sha256": {}}'), "cannot be read"),
    "a manifest that is a list": (_manifest(b"[1]"), "cannot be read"),
    "a probe without logprobs": (_probe({"call": "a" * 32, "choice": 0, "positions": [1]}), "cannot be read"),
    "a probe of other lengths": (
        _probe({"call": "a" * 32, "choice": 0, "positions": [1], "parent": [], "new": [0.0]}),
        "cannot be read",
    ),
    "a probe of a first token": (
        _probe({"call": "a" * 32, "choice": 0, "positions": [0], "parent": [0.0], "new": [0.0]}),
        "cannot be read",
    ),
    "refused by vLLM": (_refused, "vLLM refuses the adapter: "),
}


@pytest.mark.parametrize(("spoil", "reason"), SPOILED.values(), ids=SPOILED.keys())
def test_a_bad_version_is_rejected_and_the_live_one_stays(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer, spoil: Spoil, reason: str
) -> None:
    proxy = start_proxy()
    trainer.train(1)
    reaches(trainer, 1, VersionState.LIVE)
    spoil(trainer, own_fake)
    rejected = reaches(trainer, 2, VersionState.REJECTED)
    assert rejected.reason is not None
    assert reason in rejected.reason
    own_fake.state.served_as_base = False
    assert answerer(proxy) == ("policy@1", "policy@1")
    assert proxy.status()["versions"] == {"standby": ["policy@0"], "live": ["policy@1"], "rejected": ["policy@2"]}
    assert proxy.chat(model="policy@2").status_code == 404
    # And the next one is taken as if nothing had been.
    trainer.train(3, parent=1)
    reaches(trainer, 3, VersionState.LIVE)
    until(lambda: answerer(proxy) == ("policy@3", "policy@3"))


@pytest.mark.parametrize(
    ("deleted", "verdict", "tokens"), [(1, "moved as trained", 15), (2, "identity only", 0)], ids=["one", "all"]
)
def test_what_is_left_of_a_probe_decides_when_sessions_are_deleted(
    start_proxy: StartProxy, trainer: Trainer, deleted: int, verdict: str, tokens: int
) -> None:
    start_proxy()
    trainer.publish(1)
    trainer.delete_probed(deleted)
    trainer.announce(1)
    probe = reaches(trainer, 1, VersionState.LIVE).probe
    assert (probe["verdict"], probe["tokens"]) == (verdict, tokens)
    left = None if tokens else "0 of 40 tokens are left: sessions of the probe were deleted"
    assert probe["reason"] == left


def test_a_version_whose_manifest_had_copied_the_ids_is_served(start_proxy: StartProxy, trainer: Trainer) -> None:
    start_proxy()
    trainer.train(1, probe=[{"ids": [1, 2], "positions": [1], "parent": [-1.0], "new": [-2.0]}])
    assert reaches(trainer, 1, VersionState.LIVE).probe["verdict"] == "identity only"


def test_vllm_that_forgets_gets_its_adapters_again(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy()
    for number in (1, 2):
        trainer.train(number, parent=number - 1)
        reaches(trainer, number, VersionState.LIVE)
    until(lambda: answerer(proxy, **{"x-session-id": "s"})[0] == "policy@2")
    own_fake.restart()
    until(lambda: sorted(own_fake.state.adapters) == ["policy@1", "policy@2"])
    until(lambda: proxy.client.get("/ready").status_code == 200)
    assert answerer(proxy) == ("policy@2", "policy@2")
    assert answerer(proxy, **{"x-session-id": "s"}) == ("policy@2", "policy@2")
    until(lambda: answerer(proxy, "policy@1") == ("policy@1", "policy@1"))
    until(lambda: not [p for p in proxy.status()["degraded"] if "trainer" not in p])


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/models", "/v1/completions"])
@pytest.mark.parametrize("fault", ["bad-gateway", "reset-head"])
def test_a_hiccup_of_vllm_rejects_nothing(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer, path: str, fault: str
) -> None:
    proxy = start_proxy()
    if path == "/v1/models":
        own_fake.fail_after_load(fault)
    else:
        own_fake.fail_next(path, fault)
    trainer.train(1)
    reaches(trainer, 1, VersionState.LIVE)
    until(lambda: answerer(proxy)[0] == "policy@1")
    until(lambda: not [p for p in proxy.status()["degraded"] if "trainer" not in p])


def test_a_version_that_vllm_never_probes_is_rejected(
    own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy()
    trainer.train(1)

    def rejected() -> bool:
        own_fake.fail_next("/v1/completions", "bad-gateway")
        version = trainer.version(1)
        return version is not None and version.state is VersionState.REJECTED

    until(rejected)
    version = trainer.version(1)
    assert version is not None
    assert version.reason is not None
    assert version.reason.startswith("vLLM failed to load or to probe it 3 times: /v1/completions")
    assert answerer(proxy) == ("policy@0", "base-model")


def test_a_session_that_names_a_version_first_stays_pinned_to_the_live_one(
    start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy()
    recorded = Recorded(proxy.data)
    trainer.train(1)
    reaches(trainer, 1, VersionState.LIVE)
    until(lambda: answerer(proxy)[0] == "policy@1")
    assert answerer(proxy, "policy@0", **{"x-session-id": "s"}) == ("policy@0", "base-model")
    assert [call.version for call in recorded.calls("s", 1)] == [0]
    again = start_proxy()
    until(lambda: again.client.get("/ready").status_code == 200)
    assert answerer(again, **{"x-session-id": "s"}) == ("policy@1", "policy@1")
    recorded.db.close()


def test_a_spoiled_parent_does_not_reject_the_right_child(start_proxy: StartProxy, trainer: Trainer) -> None:
    proxy = start_proxy()
    trainer.train(1)
    reaches(trainer, 1, VersionState.LIVE)
    (proxy.data / "adapters" / "policy@1" / WEIGHTS).write_bytes(b"something else")
    trainer.train(2, parent=1)
    assert reaches(trainer, 2, VersionState.LIVE).probe["verdict"] == "identity only"
    until(lambda: answerer(proxy) == ("policy@2", "policy@2"))


def test_two_servers_both_get_the_version(own_fake: FakeVllm, start_proxy: StartProxy, trainer: Trainer) -> None:
    with FakeVllm() as other:
        proxy = start_proxy((own_fake.url, other.url))
        trainer.train(1)
        reaches(trainer, 1, VersionState.LIVE)
        assert list(own_fake.state.adapters) == list(other.state.adapters) == ["policy@1"]
        for number in range(8):
            assert answerer(proxy, **{"x-session-id": f"s{number}"})[1] in ("policy@1", "base-model")
        assert own_fake.calls()
        assert other.calls()
        # One of them dies: its sessions go to the other.
        other.stop()
        until(lambda: [u["problem"] is None for u in proxy.status()["upstreams"]] == [True, False])
        for number in range(8):
            assert answerer(proxy, **{"x-session-id": f"s{number}"})[1] in ("policy@1", "base-model")
        assert proxy.client.get("/ready").status_code == 200
        other.state.adapters.clear()
        other.start()
        until(lambda: list(other.state.adapters) == ["policy@1"])


def test_the_manifest_of_a_folder_outside_is_not_read(
    start_proxy: StartProxy, trainer: Trainer, tmp_path: Path
) -> None:
    start_proxy()
    folder = trainer.publish(1)
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    trainer.announce(1)
    rejected = reaches(trainer, 1, VersionState.REJECTED)
    assert rejected.reason is not None
    assert "does not lie in" in rejected.reason
    assert orjson.loads((elsewhere / "manifest.json").read_bytes())
