"""`fsync = true`: nobody is told that something is kept before the disk has confirmed it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.recorder import Recorder
from storage.journal import JournalWriter, Kind
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import CHAT, Recorded, RunningProxy, request, tags, until


@dataclass
class Disk:
    """An fsync that takes as long as the test wants, and remembers what was on the disk afterwards."""

    folder: Path
    confirms: threading.Event = field(default_factory=threading.Event)
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    fails: bool = False
    safe: dict[str, int] = field(default_factory=dict)
    """How many bytes of each segment were there when the sync of it began, which has ended."""
    folders: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.confirms.set()

    def fsync(self, file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        size = os.fstat(file).st_size
        self.asked.release()
        assert self.confirms.wait(60)
        if self.fails:
            raise OSError(5, "Input/output error")
        if path.is_dir():
            self.folders.append(path.name)
        else:
            self.safe[path.name] = size

    def holds(self, kind: Kind) -> int:
        """How many records of a kind would be there after a loss of power."""
        kept = b"".join((self.folder / name).read_bytes()[:size] for name, size in sorted(self.safe.items()))
        return kept.count(b"SLJ2%c" % kind)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path / "data" / "journal")
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


@pytest.fixture
def durable(own_fake: FakeVllm, tmp_path: Path, disk: Disk) -> Iterator[RunningProxy]:
    proxy = RunningProxy(tmp_path / "data", (own_fake.url,), own_fake.secret, fsync=True)
    yield proxy
    disk.confirms.set()
    proxy.stop()


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("fault", ["none", "no-done", "bad-gateway", "reset-head"])
def test_the_last_byte_leaves_after_the_disk_has_confirmed(
    durable: RunningProxy, disk: Disk, stream: bool, fault: str
) -> None:
    disk.confirms.clear()
    with raw.connect(durable.url) as connection:
        headers = {"connection": "close", **tags("s", fault)}
        raw.send(connection, CHAT, request(stream=stream), headers)
        assert disk.asked.acquire(timeout=60)
        # Whatever has arrived by now, it is not everything.
        connection.settimeout(0.3)
        early = b""
        try:
            while data := connection.recv(65536):
                early += data
        except TimeoutError:
            pass
        assert not raw.parse(early).whole
        assert b"data: [DONE]" not in early
        disk.confirms.set()
        connection.settimeout(60)
        assert raw.parse(early + raw.read_all(connection)).whole
    assert disk.holds(Kind.END) == 1
    assert disk.folders == ["journal", "data"], "the new segment's name, too"


def test_a_session_end_and_a_reward_wait_for_the_disk(durable: RunningProxy, disk: Disk) -> None:
    durable.chat(headers=tags("s"))
    for path, body, kind in (("reward", {"value": 1.0}, Kind.REWARD), ("end", None, Kind.CLOSE)):
        assert durable.client.post(f"/v1/sessions/s/{path}", json=body).status_code == 200
        assert disk.holds(kind) == 1
    durable.chat(headers=tags("t", x_session_end="true"))
    assert disk.holds(Kind.CLOSE) == 2
    recorded = Recorded(durable.data)
    recorded.calls("s")  # the admin's word needs the session in the database
    recorded.db.close()
    assert durable.admin("sessions/s/reward", "POST", json={"value": 0.5})["session"] == "s"
    assert disk.holds(Kind.REWARD) == 2


def test_a_disk_that_does_not_confirm_stops_no_agent(durable: RunningProxy, disk: Disk) -> None:
    durable.chat(headers=tags("before"))
    disk.fails = True
    assert durable.chat(headers=tags("unsure")).status_code == 200
    ready = durable.client.get("/ready")
    assert (ready.status_code, ready.json()["serves"], ready.json()["records"]) == (503, True, False)
    assert any("does not confirm what was written" in problem for problem in ready.json()["problems"])
    assert durable.client.post("/v1/sessions/before/reward", json={"value": 1}).status_code == 503
    disk.fails = False
    until(lambda: durable.client.get("/ready").status_code == 200)
    recorded = Recorded(durable.data)
    for name in ("before", "unsure"):
        recorded.calls(name)
    recorded.db.close()


def test_a_reward_that_the_disk_does_not_confirm_is_refused_whoever_gives_it(durable: RunningProxy, disk: Disk) -> None:
    assert durable.chat(headers=tags("s")).status_code == 200
    recorded = Recorded(durable.data)
    recorded.calls("s")
    recorded.db.close()
    disk.fails = True
    client = durable.client.post("/v1/sessions/s/reward", json={"value": 1})
    admin = durable.answer("sessions/s/reward", "POST", json={"value": 1})
    assert (client.status_code, admin.status_code) == (503, 503)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_waited_for_the_disk_is_given_again(
    durable: RunningProxy, disk: Disk, own_fake: FakeVllm, stream: bool
) -> None:
    disk.confirms.clear()
    body = request(stream=stream)
    with raw.connect(durable.url) as connection:
        raw.send(connection, CHAT, body, tags("s"))
        assert disk.asked.acquire(timeout=60)  # the end is recorded, and has not left
    time.sleep(0.5)  # it is known to be gone
    disk.confirms.set()
    given = raw.ask(durable.url, CHAT, body, tags("s") | {"x-stainless-retry-count": "1"})
    recorded = Recorded(durable.data)
    (call,) = recorded.calls("s")
    assert given.all(b"x-call-id") == [call.id.encode()]
    assert (given.status, given.whole, given.body) == (200, True, recorded.row(call.seq)["response"])
    assert len(own_fake.calls()) == 1
    recorded.db.close()


def test_without_it_the_disk_is_not_asked(own_fake: FakeVllm, tmp_path: Path, disk: Disk) -> None:
    proxy = RunningProxy(tmp_path / "data", (own_fake.url,), own_fake.secret)
    proxy.chat(headers=tags("s"))
    assert proxy.client.post("/v1/sessions/s/end").status_code == 200
    proxy.stop()
    assert not disk.asked.acquire(blocking=False)


async def test_one_sync_is_for_all_that_wait(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    writer = JournalWriter(tmp_path, fsync=disk.fsync)
    recorder = Recorder(writer)
    disk.confirms.clear()
    recorder.append((Kind.PIECE, "0" * 32))
    first = asyncio.create_task(recorder.settle())
    assert await asyncio.to_thread(disk.asked.acquire, timeout=60)
    later = []
    for _ in range(50):
        recorder.append((Kind.PIECE, "0" * 32))  # goes on while the disk works
        later.append(asyncio.create_task(recorder.settle()))
    gone = later.pop()
    await asyncio.sleep(0)
    gone.cancel()
    assert not first.done()
    disk.confirms.set()
    await asyncio.wait_for(asyncio.gather(first, *later), 60)
    assert disk.holds(Kind.PIECE) == 51
    syncs = 4  # segment, its folder, that one's folder; and once more the segment, for the fifty
    assert disk.asked.acquire(blocking=False)
    for _ in range(syncs - 2):
        assert disk.asked.acquire(blocking=False)
    assert not disk.asked.acquire(blocking=False)
    writer.close()
