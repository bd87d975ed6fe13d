"""A real vLLM keeps the contract that the fake one of the other tests keeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.marked_calls import Server
from tests.vllm_contract.asking import Vllm
from tests.vllm_contract.contract import *  # noqa: F403 - the tests

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def contract(vllm: Server) -> Iterator[Vllm]:
    asked = Vllm.at(vllm.base_url, vllm.secret, vllm.model, vllm.adapters[1])
    yield asked
    asked.client.close()
