"""The loops that look after sessions and versions: whatever fails in them, they go on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from proxy.app import _repeat


async def test_a_loop_goes_on_and_says_what_fails_once(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()
    ends = iter(["locked", "locked", "full", "locked", None, "locked"])

    async def step() -> None:
        end = next(ends, "over")
        if end == "over":
            done.set()
            await asyncio.sleep(600)
        if end is not None:
            raise OSError(end)

    loop = asyncio.create_task(_repeat("tests", step, 0))
    await asyncio.wait_for(done.wait(), 60)
    loop.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await loop
    said = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert said == ["locked", "full", "locked", "locked"]
    assert "the loop that looks after tests failed; it goes on" in caplog.text
