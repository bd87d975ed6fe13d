"""Starts with something wrong in the database: agents are served, and what was open closes."""

from __future__ import annotations

from pathlib import Path

import pysqlite3 as sqlite3
import pytest

from storage.database import FILE
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.conftest import StartProxy
from tests.proxy.running import CHAT, ProxyProcess, Recorded, request, tags, until
from tests.storage.damage import damage


def test_an_inferred_session_that_was_named_for_tokenize(start_proxy: StartProxy, tmp_path: Path) -> None:
    proxy = start_proxy()
    name = proxy.chat("hello").headers["x-session-id"]
    asked = {"model": "agent", "prompt": "hi"}
    assert proxy.client.post("/tokenize", json=asked, headers={"x-session-id": name}).status_code == 200
    recorded = Recorded(tmp_path / "data")
    recorded.calls(name, 2)
    recorded.db.close()
    assert start_proxy().chat("again").status_code == 200


def test_sessions_that_are_taken_in_late_close(start_proxy: StartProxy, tmp_path: Path) -> None:
    """The database is locked at the start: what an earlier process left comes into it only later."""
    proxy = start_proxy()
    lock = sqlite3.connect(str(tmp_path / "data" / FILE), isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    assert proxy.chat("left", headers=tags("left")).status_code == 200
    proxy = start_proxy(idle=0.5)
    assert "database is locked" in proxy.client.get("/ready").json()["problems"][0]
    lock.execute("ROLLBACK")
    lock.close()
    recorded = Recorded(tmp_path / "data")
    recorded.calls("left")
    assert until(lambda: recorded.closed("left"))
    recorded.db.close()


@pytest.mark.parametrize("table", ["sessions", "keys", "journal_position"])
def test_a_damaged_page_stops_no_agent(own_fake: FakeVllm, tmp_path: Path, table: str) -> None:
    data = tmp_path / "data"
    for _ in range(2):
        proxy = ProxyProcess(data, own_fake.url, own_fake.secret or "")
        try:
            proxy.wait()
            assert raw.ask(proxy.url, CHAT, request("hello"), tags("s")).status == 200
        finally:
            proxy.kill()
        damage(data / FILE, table)
