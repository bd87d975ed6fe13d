"""A redirect of vLLM is an answer like any other: nobody follows it, neither with secrets nor without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake_vllm import FakeVllm
from tests.proxy.adapters import Trainer
from tests.proxy.conftest import StartProxy
from tests.proxy.running import DIALECTS, tags, until


@pytest.fixture
def elsewhere() -> Iterator[FakeVllm]:
    """Where vLLM sends everyone."""
    with FakeVllm() as running:
        yield running


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_an_agent_gets_the_redirect_itself(
    own_fake: FakeVllm, elsewhere: FakeVllm, start_proxy: StartProxy, stream: bool
) -> None:
    proxy = start_proxy(upstream_api_key="the-key-of-vllm")
    for path, body in DIALECTS.items():
        request = {"model": "agent", "stream": stream, **body}
        answer = proxy.client.post(path, json=request, headers=tags("s", f"redirect:{elsewhere.port}"))
        assert (answer.status_code, answer.headers["location"]) == (307, elsewhere.url + path)
    assert elsewhere.requests == []


def test_the_proxys_own_questions_follow_none(
    own_fake: FakeVllm, elsewhere: FakeVllm, start_proxy: StartProxy, trainer: Trainer
) -> None:
    proxy = start_proxy(upstream_api_key="the-key-of-vllm")
    with own_fake.failing("/v1/load_lora_adapter", f"redirect:{elsewhere.port}"):
        trainer.train(1)
        until(lambda: any("load_lora_adapter at" in problem for problem in proxy.status()["degraded"]))
    with own_fake.failing("/v1/models", f"redirect:{elsewhere.port}"):
        until(lambda: proxy.client.get("/ready").status_code == 503)
        assert "GET /v1/models was answered with 307" in proxy.client.get("/ready").text
    assert elsewhere.requests == []
