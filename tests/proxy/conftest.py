"""A fake vLLM, the real proxy before it, and what the proxy recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_vllm import FakeVllm
from tests.proxy.adapters import Trainer
from tests.proxy.running import Recorded, RunningProxy

StartProxy = Callable[..., RunningProxy]


_numbers = itertools.count()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeVllm, RunningProxy]]:
    """One fake and one proxy for all tests of a file that leave nothing behind but their sessions."""
    with FakeVllm() as fake:
        # By name, since cookies are kept for names only.
        url = f"http://localhost:{fake.port}"
        proxy = RunningProxy(tmp_path_factory.mktemp("shared") / "data", (url,), fake.secret)
        yield fake, proxy
        proxy.stop()


@pytest.fixture
def fake(pair: tuple[FakeVllm, RunningProxy]) -> FakeVllm:
    pair[0].requests.clear()
    return pair[0]


@pytest.fixture
def proxy(pair: tuple[FakeVllm, RunningProxy]) -> RunningProxy:
    return pair[1]


@pytest.fixture
def recorded(proxy: RunningProxy) -> Iterator[Recorded]:
    found = Recorded(proxy.data)
    yield found
    found.db.close()


@pytest.fixture
def sid() -> str:
    """A session id of the test's own."""
    return f"session {next(_numbers)}"


@pytest.fixture
def own_fake() -> Iterator[FakeVllm]:
    """A fake that the test may break."""
    with FakeVllm() as running:
        yield running


@pytest.fixture
def start_proxy(own_fake: FakeVllm, tmp_path: Path) -> Iterator[StartProxy]:
    """Starts a proxy of the test's own before `own_fake`; a second start is a restart on the same data."""
    started: list[RunningProxy] = []

    def start(upstream: tuple[str, ...] | None = None, **options: Any) -> RunningProxy:
        for earlier in started:
            earlier.stop()
        started.clear()
        urls = (own_fake.url,) if upstream is None else upstream
        proxy = RunningProxy(tmp_path / "data", urls, own_fake.secret, **options)
        started.append(proxy)
        return proxy

    yield start
    for proxy in started:
        proxy.stop()


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "data")
