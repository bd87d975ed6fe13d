"""The looks at vLLM: a busy one is late, and serves; one that is gone is told at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import patch

import aiohttp
import pytest

from proxy import upstreams
from proxy.upstreams import Upstream, Upstreams
from storage.types import BASE
from tests.fake_vllm import FakeVllm
from tests.fake_vllm.server import SECRET


@pytest.fixture
async def all_of_them(own_fake: FakeVllm) -> AsyncIterator[Upstreams]:
    found = Upstreams((own_fake.url,), SECRET, None, None)
    await found.start()
    yield found
    await found.stop()


async def late(found: Upstreams, fake: FakeVllm) -> Upstream:
    """One look that times out."""
    with fake.failing("/v1/models", "slow:5"), patch.object(upstreams, "_CHECK", aiohttp.ClientTimeout(total=0.2)):
        await found.check_all("policy")
    return found.all[0]


async def test_a_busy_vllm_goes_on_serving(all_of_them: Upstreams, own_fake: FakeVllm) -> None:
    await all_of_them.check_all("policy")
    for round_ in range(2):
        for number in range(upstreams._LATE_CHECKS):
            upstream = await late(all_of_them, own_fake)
            assert (upstream.problem, upstream.serves, upstream.late_checks) == (None, {BASE}, number + 1), round_
            assert upstream.doubt is not None
        # One that is answered forgives all before it.
        await all_of_them.check_all("policy")
        assert upstream.doubt is None


async def test_a_vllm_that_stays_silent_is_gone(all_of_them: Upstreams, own_fake: FakeVllm) -> None:
    await all_of_them.check_all("policy")
    for _ in range(upstreams._LATE_CHECKS + 1):
        upstream = await late(all_of_them, own_fake)
    assert upstream.problem is not None
    assert upstream.problem.startswith("vLLM does not answer (TimeoutError)")
    assert upstream.serves == set()


async def test_a_vllm_that_never_answered_serves_nobody(all_of_them: Upstreams, own_fake: FakeVllm) -> None:
    upstream = await late(all_of_them, own_fake)
    assert upstream.problem is not None
    assert upstream.problem.startswith("vLLM does not answer (TimeoutError)")


async def test_a_vllm_that_is_gone_is_told_at_once(all_of_them: Upstreams, own_fake: FakeVllm) -> None:
    await all_of_them.check_all("policy")
    own_fake.stop()
    await all_of_them.check_all("policy")
    assert all_of_them.all[0].problem is not None
    assert all_of_them.all[0].serves == set()
