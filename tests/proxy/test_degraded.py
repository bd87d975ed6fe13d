"""What is missing is told: in /ready, in the status, and to the agent; /health stays as it is (promises 3 and 8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fake_vllm import FakeVllm
from tests.fake_vllm.server import SECRET
from tests.proxy.adapters import Trainer
from tests.proxy.running import RunningProxy, free_port, tags, until


@contextmanager
def running(data: Path, upstream: tuple[str, ...], secret: str = SECRET, **options: Any) -> Iterator[RunningProxy]:
    proxy = RunningProxy(data, upstream, secret, **options)
    try:
        yield proxy
    finally:
        proxy.stop()


def assert_told(proxy: RunningProxy, reason: str) -> None:
    """Nobody is served, and everyone is told why."""
    assert proxy.client.get("/health").status_code == 200
    ready = proxy.client.get("/ready")
    assert (ready.status_code, ready.json()["serves"], ready.json()["records"]) == (503, False, True)
    assert any(reason in problem for problem in ready.json()["problems"]), ready.json()
    assert any(reason in problem for problem in proxy.status()["degraded"])
    for answer in (proxy.chat(headers=tags("s")), proxy.chat(stream=True), proxy.client.get("/v1/models")):
        assert answer.status_code == 502
        assert answer.headers["content-type"] == "application/json"
        assert reason in answer.json()["error"]["message"]


def test_no_upstream(tmp_path: Path) -> None:
    with running(tmp_path / "data", ()) as proxy:
        assert_told(proxy, "no vLLM server is configured: set SLIPSTREAM_UPSTREAM")


def test_an_upstream_that_is_not_there_and_comes(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path / "data", (f"http://127.0.0.1:{port}",)) as proxy:
        assert_told(proxy, f"http://127.0.0.1:{port}: vLLM does not answer (")
        fake = FakeVllm(port=port)
        with fake:
            until(lambda: proxy.client.get("/ready").status_code == 200)
            assert proxy.chat().status_code == 200
            fake.stop()
            until(lambda: proxy.client.get("/ready").status_code == 503)
            assert_told(proxy, "vLLM does not answer (")


def test_an_upstream_without_a_model(tmp_path: Path) -> None:
    with FakeVllm(model=None) as fake, running(tmp_path / "data", (fake.url,)) as proxy:
        assert_told(proxy, "vLLM serves no model at all: start it with one")


def test_an_upstream_with_another_model(tmp_path: Path) -> None:
    with FakeVllm() as fake, running(tmp_path / "data", (fake.url,), model="large") as proxy:
        assert_told(proxy, "vLLM serves base-model, not large: set SLIPSTREAM_MODEL to a model that it serves")


def test_an_upstream_that_answers_with_an_error(tmp_path: Path) -> None:
    with FakeVllm() as fake, running(tmp_path / "data", (fake.url + "/elsewhere",)) as proxy:
        assert_told(proxy, "GET /v1/models was answered with 404")


def test_an_upstream_that_is_no_vllm(tmp_path: Path) -> None:
    with FakeVllm() as fake, fake.failing("/v1/models", "page"), running(tmp_path / "data", (fake.url,)) as proxy:
        assert_told(proxy, "GET /v1/models was answered with no list of models: <html>")


def test_a_vllm_that_loads_no_adapters_goes_on_serving(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with FakeVllm(runtime_adapters=False) as fake, running(data, (fake.url,)) as proxy:
        Trainer(data).train(1)
        reason = "start it with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        until(lambda: any(reason in problem for problem in proxy.status()["degraded"]))
        loads = len(fake.calls("/v1/load_lora_adapter"))
        until(lambda: len(fake.calls("/v1/load_lora_adapter")) > loads + 3)
        for _ in range(20):
            assert proxy.chat().headers["x-policy-version"] == "policy@0"
            assert proxy.client.get("/ready").status_code == 200
        assert proxy.chat(model="policy@1").status_code == 503
        assert proxy.status()["versions"] == {"live": ["policy@0"], "trained": ["policy@1"]}


def test_calls_while_vllm_restarts(tmp_path: Path) -> None:
    with FakeVllm() as fake, running(tmp_path / "data", (fake.url,)) as proxy:
        assert proxy.chat(headers=tags("s")).status_code == 200
        fake.restart()
        # The kept connection is dead: a new one is made, unseen by the agent.
        until(lambda: proxy.chat(headers=tags("s")).status_code == 200)
