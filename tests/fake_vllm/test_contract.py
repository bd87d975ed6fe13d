"""The fake keeps the contract that a real vLLM keeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake_vllm import FakeVllm
from tests.fake_vllm.engine import WEIGHTS
from tests.fake_vllm.server import SECRET
from tests.vllm_contract.asking import Vllm
from tests.vllm_contract.contract import *  # noqa: F403 - the tests


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    adapter = tmp_path_factory.mktemp("adapter")
    (adapter / WEIGHTS).write_bytes(b"an adapter")
    with FakeVllm() as fake:
        fake.state.text_only = True
        vllm = Vllm.at(fake.url, SECRET, "base-model", adapter)
        yield vllm
        vllm.client.close()
