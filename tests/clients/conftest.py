"""The stage of all clients, and what each of them played on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.clients.stage")

from tests.clients.stage import Stage  # noqa: E402  # after the line above, so that its asserts say what they saw
from tests.fake_vllm import FakeVllm  # noqa: E402
from tests.proxy.running import RunningProxy  # noqa: E402


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with FakeVllm() as fake:
        # As a real one: no two answers have the same ids, and responses can be continued by theirs.
        fake.state.unique_ids = fake.state.stores = True
        data = tmp_path_factory.mktemp("clients") / "data"
        # However slow the machine is, no session closes for being idle.
        proxy = RunningProxy(data, (fake.url,), fake.secret, idle=3600)
        found = Stage(fake, proxy)
        yield found
        found.recorded.db.close()
        proxy.stop()
