"""Responses that vLLM stores are their owner's alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_vllm import FakeVllm
from tests.proxy.running import Recorded, RunningProxy, tags, until

PATH = "/v1/responses"


@pytest.fixture
def storing(tmp_path: Path) -> Iterator[RunningProxy]:
    with FakeVllm(stores=True) as fake:
        proxy = RunningProxy(tmp_path / "data", (fake.url,), fake.secret)
        yield proxy
        proxy.stop()


def test_nobody_reads_or_continues_anothers_response(storing: RunningProxy) -> None:
    def keyed(name: str) -> dict[str, str]:
        key = storing.admin("keys", "POST", json={"name": name})["key"]
        return {"authorization": f"Bearer {key}", **tags("s")}

    def ask(headers: dict[str, str], **more: Any) -> Any:
        return storing.client.post(PATH, json={"model": "agent", "input": "my words", **more}, headers=headers)

    mine, theirs = keyed("ann"), keyed("bob")
    made = ask(mine).json()["id"]
    recorded = Recorded(storing.data)
    until(lambda: recorded.db.number("SELECT count(*) FROM calls"))
    recorded.db.close()
    assert storing.client.get(f"{PATH}/{made}", headers=mine).status_code == 200
    assert ask(mine, previous_response_id=made).status_code == 200
    unknown = storing.client.get(f"{PATH}/resp_0", headers=theirs)
    refused = storing.client.get(f"{PATH}/{made}", headers=theirs)
    assert refused.status_code == unknown.status_code == 404
    assert refused.json() == {"error": unknown.json()["error"] | {"message": f"Response with id '{made}' not found."}}
    assert storing.client.post(f"{PATH}/{made}/cancel", headers=theirs).status_code == 404
    assert ask(theirs, previous_response_id=made).status_code == 404
    odd = b'{"model": "agent", "input": "x", "previous_response_id": "resp_\\ud800"}'
    assert storing.client.post(PATH, content=odd, headers=theirs).status_code == 404
