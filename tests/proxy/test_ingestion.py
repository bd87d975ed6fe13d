"""The ingestion is a process: it dies with the proxy and for itself, and nothing is lost or doubled by it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy import lock
from proxy.errors import DataInUse
from storage.database import Database
from storage.journal import JournalWriter, Kind, segment_path
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.conftest import StartProxy
from tests.proxy.running import (
    ADMIN_KEY,
    CHAT,
    ProxyProcess,
    Recorded,
    RunningProxy,
    children,
    request,
    tags,
    until,
)

StartProcess = Callable[..., ProxyProcess]


@pytest.fixture
def start(own_fake: FakeVllm, tmp_path: Path) -> Iterator[StartProcess]:
    """Starts `slipstream proxy`; all of them on the same data."""
    started: list[ProxyProcess] = []

    def process() -> ProxyProcess:
        proxy = ProxyProcess(tmp_path / "data", own_fake.url, own_fake.secret or "")
        started.append(proxy)
        return proxy

    yield process
    for proxy in started:
        proxy.kill()


def degraded(proxy: ProxyProcess) -> list[str]:
    answer = proxy.client.get("/admin/status", headers={"authorization": f"Bearer {ADMIN_KEY}"})
    said: list[str] = answer.json()["degraded"]
    return said


def ask(proxy: ProxyProcess, session: str) -> bytes:
    """A call; returns its id."""
    answer = raw.ask(proxy.url, CHAT, request(), tags(session))
    assert (answer.status, answer.whole, answer.all(b"x-slipstream-recorded")) == (200, True, [])
    return answer.all(b"x-call-id")[0]


def ids(data: Path) -> list[bytes]:
    """Of the calls in the database, in their order."""
    db = Database(data)
    try:
        return [row["id"].encode() for row in db.all("SELECT id FROM calls ORDER BY seq")]
    finally:
        db.close()


def is_alive(pid: int) -> bool:
    """Whether it may still do anything."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # nobody may have asked how it ended


def test_it_dies_with_the_proxy_and_the_next_one_takes_all_in(start: StartProcess) -> None:
    proxy = start()
    proxy.wait()
    ingestion = proxy.ingestion()
    db = Database(proxy.data)
    with db.transaction():  # it is waiting for this lock when the proxy dies
        asked = [ask(proxy, f"s{number}") for number in range(20)]
        proxy.kill()
        until(lambda: not is_alive(ingestion))
    db.close()
    start().wait()
    assert sorted(ids(proxy.data)) == sorted(asked)


def test_no_two_work_on_one_folder(start: StartProcess) -> None:
    """One of a proxy that was killed does not end yet, and holds the lock: the next proxy waits for it."""
    proxy = start()
    proxy.wait()
    held = open_files(proxy.ingestion())
    assert proxy.data / lock.INGESTION_FILE in held
    assert proxy.data / lock.FILE not in held
    asked = ask(proxy, "s")
    proxy.kill()
    with lock.take_ingestion(proxy.data):  # in its place
        again = start()
        until(lambda: proxy.data / lock.INGESTION_FILE in open_files(again.process.pid))
        with pytest.raises(subprocess.TimeoutExpired):
            again.process.wait(2)
        assert children(again.process.pid) == set()
    again.wait()
    assert ids(proxy.data) == [asked]


def open_files(pid: int) -> set[Path]:
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(path.readlink())
    return found


def test_one_that_never_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_LONGEST_SECONDS", 0.1)
    with lock.take_ingestion(tmp_path), pytest.raises(DataInUse, match=r"does not end: kill it \(`fuser .*ingestion"):
        lock.take_ingestion(tmp_path)
    lock.take_ingestion(tmp_path).close()


def test_killed_under_load_it_goes_on_where_it_was(start: StartProcess) -> None:
    proxy = start()
    proxy.wait()
    asked: list[bytes] = []
    enough = threading.Event()

    def play(client: int) -> None:
        number = 0
        while not enough.is_set():
            asked.append(ask(proxy, f"client {client} session {number % 5}"))
            number += 1

    threads = [threading.Thread(target=play, args=(client,)) for client in range(4)]
    for thread in threads:
        thread.start()
    try:
        killed: set[int] = set()
        for _ in range(4):
            before = len(asked)
            until(lambda: len(asked) > before + 20)  # noqa: B023 - asked at once
            killed.add(ingestion := proxy.ingestion())
            os.kill(ingestion, signal.SIGKILL)
            until(lambda: any("was killed by signal 9; it is started again" in said for said in degraded(proxy)))
            assert proxy.client.get("/ready").status_code == 200, "nothing is lost by it"
            until(lambda: not any("database" in said for said in degraded(proxy)))
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert len(killed) == 4
    until(lambda: len(ids(proxy.data)) >= len(asked))
    assert sorted(ids(proxy.data)) == sorted(asked)
    recorded = Recorded(proxy.data)
    assert recorded.db.number("SELECT sum(calls) FROM sessions") == len(asked)
    assert recorded.db.number("SELECT count(*) FROM calls WHERE outcome <> 'complete'") == 0
    recorded.db.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_drains(own_fake: FakeVllm, start: StartProcess, number: signal.Signals) -> None:
    proxy = start()
    proxy.wait()
    ingestion = proxy.ingestion()
    with raw.connect(proxy.url) as slow:
        raw.send(slow, CHAT, request("slow"), tags("slow", "slow:1.5"))
        until(lambda: len(own_fake.calls(CHAT)) == 1)
        os.killpg(proxy.process.pid, number)
        answer = raw.parse(raw.read_all(slow))
        assert (answer.status, answer.whole) == (200, True)
    # A shell lets what it runs in the background ignore Ctrl-C, and so do its children.
    ends = (0,) if signal.getsignal(number) is signal.SIG_IGN else (-number, 128 + number)
    assert proxy.process.wait(60) in ends
    assert not is_alive(ingestion)
    assert ids(proxy.data) == answer.all(b"x-call-id")
    assert "killed by signal" not in proxy.log.read_text()


def test_a_stop_takes_in_what_is_left_and_leaves_no_process(start_proxy: StartProxy) -> None:
    before = children(os.getpid())
    proxy = start_proxy()
    assert len(children(os.getpid()) - before) == 1
    asked = [proxy.chat(headers=tags(f"s{number}")).headers["x-call-id"].encode() for number in range(20)]
    proxy.stop()
    assert children(os.getpid()) <= before
    assert ids(proxy.data) == asked


def test_one_that_hangs_keeps_no_proxy_from_stopping(start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.ingestion._STOP_SECONDS", 0.5)
    before = children(os.getpid())
    proxy = start_proxy()
    (ingestion,) = children(os.getpid()) - before
    os.kill(ingestion, signal.SIGSTOP)
    asked = proxy.chat(headers=tags("s")).headers["x-call-id"].encode()
    proxy.stop()
    assert not is_alive(ingestion)
    start_proxy()
    assert ids(proxy.data) == [asked]


def kill_ingestion(proxy: RunningProxy, before: set[int]) -> None:
    """Kill it, and wait until another one works."""
    (ingestion,) = children(os.getpid()) - before
    os.kill(ingestion, signal.SIGKILL)
    session = f"after {ingestion}"
    assert proxy.chat(headers=tags(session)).status_code == 200
    recorded = Recorded(proxy.data)
    recorded.calls(session)
    recorded.db.close()
    until(lambda: not any("started again" in said for said in proxy.status()["degraded"]))


def test_what_was_refused_and_lost_is_said_by_the_next_one_too(start_proxy: StartProxy, tmp_path: Path) -> None:
    dead = JournalWriter(tmp_path / "data" / "journal")
    for text in (b"one", b"two", b"three"):
        dead.append((Kind.PIECE, "0" * 32, text))
    dead.close()
    path = segment_path(tmp_path / "data" / "journal", 1)
    path.write_bytes(path.read_bytes().replace(b"two", b"tWo"))
    before = children(os.getpid())
    proxy = start_proxy()
    db = Database(proxy.data)
    db.execute(
        "CREATE TRIGGER poison BEFORE INSERT ON sessions WHEN new.session_id = 'poison' "
        "BEGIN SELECT RAISE(ABORT, 'it is poison'); END"
    )
    db.close()
    lost = "1 place of the journal could not be read: see the log and journal/lost"
    for refused in ("1 record", "2 records"):
        assert proxy.chat(headers=tags("poison")).status_code == 200
        said = f"the database refused {refused}: see journal/refused"
        until(lambda: said in proxy.status()["degraded"])  # noqa: B023 - asked at once
        assert lost in proxy.status()["warnings"]
        kill_ingestion(proxy, before)
    assert lost in proxy.status()["warnings"]


def test_one_that_cannot_open_the_database_says_so(start_proxy: StartProxy) -> None:
    before = children(os.getpid())
    proxy = start_proxy()
    (ingestion,) = children(os.getpid()) - before
    db = Database(proxy.data)
    db.insert("_sqlite_migrations", migration_set="slipstream", name="999_flying", applied_at="2030-01-01")
    os.kill(ingestion, signal.SIGKILL)
    asked = proxy.chat(headers=tags("s")).headers["x-call-id"].encode()
    until(lambda: "written by a newer Slipstream" in proxy.client.get("/ready").json().get("problems", [""])[0])
    db.execute("DELETE FROM _sqlite_migrations WHERE name = '999_flying'")
    until(lambda: "problems" not in proxy.client.get("/ready").json())
    assert [row["id"].encode() for row in db.all("SELECT id FROM calls")] == [asked]
    db.close()


def test_after_the_journal_was_deleted_recording_goes_on(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    assert proxy.chat(headers=tags("before")).status_code == 200
    shutil.rmtree(proxy.data / "journal")
    until((proxy.data / "journal").exists)
    assert proxy.chat(headers=tags("after")).status_code == 200
    recorded = Recorded(proxy.data)
    recorded.calls("after")
    recorded.db.close()
    until(
        lambda: proxy.client.get("/ready").json() == {"ready": True, "serves": True, "records": True, "reachable": True}
    )


def test_the_event_loop_comes_first(start_proxy: StartProxy) -> None:
    before = children(os.getpid())
    start_proxy()
    (ingestion,) = children(os.getpid()) - before
    until(lambda: os.getpriority(os.PRIO_PROCESS, ingestion) > os.getpriority(os.PRIO_PROCESS, 0))


def test_its_start_is_short() -> None:
    """What takes long to import is none of its work."""
    program = "import proxy.ingesting, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "storage.ingest" in modules
    assert not {"fastapi", "pydantic", "uvicorn", "aiohttp", "asyncio", "sqlite_utils", "numpy"} & set(modules)
