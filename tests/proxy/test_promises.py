"""Promise 3 in the process that users run: whatever is wrong with database or record it stops no agent, all is kept."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from storage.database import FILE, Database
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import ADMIN_KEY, CHAT, ProxyProcess, Recorded, assert_exact, request, tags, until

_ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture
def process(own_fake: FakeVllm, tmp_path: Path) -> Iterator[ProxyProcess]:
    started = ProxyProcess(tmp_path / "data", own_fake.url, own_fake.secret or "")
    try:
        started.wait()
        yield started
    finally:
        started.kill()


def problems(process: ProxyProcess) -> list[list[str]]:
    """What `/ready` and the status say is wrong."""
    ready = process.client.get("/ready").json()
    degraded = process.client.get("/admin/status", headers=_ADMIN).json()["degraded"]
    return [ready.get("problems", []), degraded]


def told(process: ProxyProcess, reason: str) -> bool:
    """Whether both say ``reason``."""
    return all(any(reason in problem for problem in said) for said in problems(process))


def recovered(process: ProxyProcess) -> bool:
    """Whether neither says anything of the database any more."""
    return not any("database" in problem for said in problems(process) for problem in said)


def assert_asked(process: ProxyProcess, name: str) -> None:
    """An agent is answered, plain and in a stream, and its calls are recorded, if not yet in the database."""
    for stream in (False, True):
        answer = raw.ask(process.url, CHAT, request(name, stream=stream), tags(name))
        assert (answer.status, answer.whole, answer.all(b"x-slipstream-recorded")) == (200, True, [])


def assert_kept(process: ProxyProcess, name: str) -> None:
    recorded = Recorded(process.data)
    for call in recorded.calls(name, 2):
        assert_exact(call, [{"role": "user", "content": name}], [f"base-model answers (0) “{name}” — déjà vu, 日本 😀"])
    recorded.db.close()


def test_a_database_that_another_process_locks(own_fake: FakeVllm, process: ProxyProcess) -> None:
    assert_asked(process, "before")
    assert_kept(process, "before")
    other = Database(process.data)
    other.execute("BEGIN EXCLUSIVE")
    assert_asked(process, "meanwhile")
    until(lambda: told(process, "nothing can be taken from the journal into the database: database is locked"))
    assert process.client.get("/ready").status_code == 200, "nothing is lost by it"
    for _ in range(20):
        assert_asked(process, "still")
    assert process.client.post("/v1/sessions/meanwhile/reward", json={"value": 1}).status_code == 200
    assert process.client.post("/v1/sessions/meanwhile/end").status_code == 200
    assert other.number("SELECT count(*) FROM calls") == 2
    # A proxy that is killed meanwhile starts, and serves.
    process.kill()
    again = ProxyProcess(process.data, own_fake.url, own_fake.secret or "")
    try:
        again.wait()
        assert_asked(again, "again")
        other.execute("COMMIT")
        other.close()
        until(lambda: recovered(again))
        for name in ("meanwhile", "again"):
            assert_kept(again, name)
        recorded = Recorded(again.data)
        recorded.calls("still", 40)
        assert until(lambda: recorded.closed("meanwhile"))
        assert recorded.db.number("SELECT count(*) FROM rewards") == 1
        recorded.db.close()
    finally:
        again.kill()


_ROOM = 80_000
"""Bytes that the journal may take while the database can take none."""


def test_a_disk_that_is_full_for_the_database_alone(process: ProxyProcess) -> None:
    """The journal's segments stay below the limit; the database and its WAL are above it."""
    assert_asked(process, "before")
    assert_kept(process, "before")
    segments = sum(path.stat().st_size for path in (process.data / "journal").glob("*.segment"))
    size = segments + _ROOM
    # What is written to the WAL from its beginning on, since it was copied into the database, is more than that soon.
    assert size < max((process.data / name).stat().st_size for name in (FILE, f"{FILE}-wal"))
    process.limit_files(size)
    asked = 0
    while not told(process, "nothing can be taken from the journal into the database"):
        assert_asked(process, f"full {asked}")
        asked += 1
        assert asked < 20
        time.sleep(0.3)  # until they are taken in, or not
    assert process.client.get("/ready").status_code == 200
    process.limit_files(resource.RLIM_INFINITY)
    until(lambda: recovered(process))
    for number in range(asked):
        assert_kept(process, f"full {number}")


def test_a_row_that_the_database_refuses(process: ProxyProcess) -> None:
    db = Database(process.data)
    # What no agent could do: the database takes no call whose model has this name.
    db.execute(
        "CREATE TRIGGER poison BEFORE INSERT ON calls WHEN new.model = 'poison' "
        "BEGIN SELECT RAISE(ABORT, 'it is poison'); END"
    )
    db.execute("BEGIN EXCLUSIVE")  # so that all of them are one batch
    assert_asked(process, "mate 1")
    refused = process.client.post(CHAT, content=request("bitter", "poison"), headers=tags("poisoned"))
    assert refused.status_code == 404
    assert_asked(process, "mate 2")
    db.execute("COMMIT")
    for name in ("mate 1", "mate 2"):
        assert_kept(process, name)
    until(lambda: any("the database refused 1 record: see journal/refused" in p for p in problems(process)[1]))
    assert db.number("SELECT count(*) FROM calls WHERE model = 'poison'") == 0
    db.close()
    kept = {path.suffix: path for path in (process.data / "journal" / "refused").iterdir()}
    assert set(kept) == {".end", ".request", ".response"}
    assert kept[".request"].read_bytes() == request("bitter", "poison")
    assert kept[".response"].read_bytes() == refused.content
    assert_asked(process, "after")
    assert_kept(process, "after")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_record_of_fifty_megabytes(own_fake: FakeVllm, process: ProxyProcess, stream: bool) -> None:
    size = 50_000_000
    body = request("large", stream=stream, padding="x" * size)
    headers = tags("large", f"huge:{size}")
    with httpx.stream("POST", process.url + CHAT, content=body, headers=_with_type(headers), timeout=240) as answer:
        response = b"".join(answer.iter_raw())
    assert answer.status_code == 200
    assert "x-slipstream-recorded" not in answer.headers
    assert len(response) > size
    assert_asked(process, "beside it")
    recorded = Recorded(process.data)
    until(lambda: recorded.session("large"), 240)
    (call,) = recorded.calls("large")
    row = recorded.row(call.seq)
    assert (row["request"] == body, row["response"] == response) == (True, True)
    assert (call.outcome, call.not_trainable, len(call.choices)) == ("complete", None, 1)
    assert orjson.loads(row["request"])["padding"] == "x" * size
    recorded.db.close()
    assert_kept(process, "beside it")


def _with_type(headers: dict[str, Any]) -> dict[str, Any]:
    return {**headers, "content-type": "application/json"}
