"""The proxy as a process: a disk that is full for a while (promise 3), and `kill -9` (promise 2). In this order."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy import lock
from proxy.app import App
from proxy.asgi import Message
from proxy.errors import BadFolder
from proxy.secrets import ADMIN_KEY as ADMIN_KEY_FILE
from proxy.secrets import PLUGIN_SECRET, PLUGIN_SECRET_VARIABLE
from proxy.settings import ProxySettings
from storage.states import CallOutcome, SessionState
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import (
    ADMIN_KEY,
    CHAT,
    ProxyProcess,
    Recorded,
    RunningProxy,
    assert_exact,
    request,
    tags,
    until,
)


@pytest.fixture(scope="module")
def vllm() -> Iterator[FakeVllm]:
    with FakeVllm() as running:
        yield running


@pytest.fixture(scope="module")
def process(vllm: FakeVllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1] // 2, files[1]))
    started = ProxyProcess(tmp_path_factory.mktemp("process") / "data", vllm.url, vllm.secret or "")
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    started.wait()
    yield started
    started.kill()


def test_a_full_disk_stops_recording_and_no_agent(process: ProxyProcess) -> None:
    before = raw.ask(process.url, CHAT, request("before"), tags("before"))
    assert before.all(b"x-slipstream-recorded") == []
    assert process.client.get("/ready").json() == {"ready": True, "serves": True, "records": True, "reachable": True}
    process.limit_files(1)
    for stream in (False, True):
        answer = raw.ask(process.url, CHAT, request("full", stream=stream), tags("full"))
        assert (answer.status, answer.whole) == (200, True)
        assert answer.all(b"x-slipstream-recorded") == [b"false"]
    ready = process.client.get("/ready")
    assert (ready.status_code, ready.json()["serves"], ready.json()["records"]) == (503, True, False)
    assert any("takes no records: [Errno 27] File too large" in problem for problem in ready.json()["problems"])
    reward = process.client.post("/v1/sessions/before/reward", json={"value": 1})
    assert (reward.status_code, reward.headers["retry-after"]) == (503, "1")
    degraded = process.client.get("/admin/status", headers={"authorization": f"Bearer {ADMIN_KEY}"}).json()["degraded"]
    assert "2 calls could not be recorded whole since the proxy started" in degraded
    assert process.client.get("/health").status_code == 200

    process.limit_files(resource.RLIM_INFINITY)
    # Nothing need be recorded for this.
    until(lambda: process.client.get("/ready").status_code == 200)
    after = raw.ask(process.url, CHAT, request("after", stream=True), tags("after"))
    assert after.all(b"x-slipstream-recorded") == []
    recorded = Recorded(process.data)
    for name in ("before", "after"):
        (call,) = recorded.calls(name)
        assert_exact(call, [{"role": "user", "content": name}], [f"base-model answers (0) “{name}” — déjà vu, 日本 😀"])
    assert recorded.session("full") is None
    recorded.db.close()


def test_the_process_may_have_as_many_files_as_the_system_allows(process: ProxyProcess) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE) == (most, most)


def test_a_second_proxy_on_the_data_folder_does_not_start(vllm: FakeVllm, process: ProxyProcess) -> None:
    second = ProxyProcess(process.data, vllm.url, vllm.secret or "")
    try:
        assert second.process.wait(120) == 3
        said = second.log.read_text()
        assert f"another proxy works on the data folder {process.data}: stop that one, or give this one a" in said
        assert "Traceback" not in said
    finally:
        second.kill()
    assert raw.ask(process.url, CHAT, request("still"), tags("still")).status == 200
    recorded = Recorded(process.data)
    recorded.calls("still")
    recorded.db.close()


def test_kill_9_loses_nothing_that_a_client_read_to_its_end(vllm: FakeVllm, process: ProxyProcess) -> None:
    with raw.connect(process.url) as under_way, raw.connect(process.url) as connection:
        raw.send(under_way, CHAT, request(stream=True), tags("broken", "stall:2"))
        raw.read_until(under_way, b"base-mo")
        plain = raw.ask(process.url, CHAT, request("plain"), tags("plain"))
        raw.send(connection, CHAT, request("stream", stream=True), tags("stream"))
        raw.read_until(connection, b"data: [DONE]\n\n")
        process.kill()
    proxy = RunningProxy(process.data, (vllm.url,), vllm.secret)
    recorded = Recorded(process.data)
    (call,) = recorded.calls("plain")
    assert recorded.row(call.seq)["response"] == plain.body
    assert_exact(call, [{"role": "user", "content": "plain"}], ["base-model answers (0) “plain” — déjà vu, 日本 😀"])
    (call,) = recorded.calls("stream")
    assert call.outcome is CallOutcome.COMPLETE
    assert call.choices[0].finish == "stop"
    (call,) = recorded.calls("broken")
    assert (call.outcome, call.not_trainable) == (CallOutcome.INTERRUPTED, "the proxy stopped during this call")
    assert b"base-mo" in recorded.row(call.seq)["response"]
    session = recorded.session("broken")
    assert session is not None
    assert session.state is SessionState.OPEN
    assert proxy.chat(headers=tags("broken", x_session_end="true")).status_code == 200
    until(lambda: recorded.closed("broken"))
    recorded.db.close()
    proxy.stop()


@pytest.mark.parametrize("name", [ADMIN_KEY_FILE, PLUGIN_SECRET])
@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["folder", "no text"])
def test_a_secret_that_cannot_be_read_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    for variable in ("SLIPSTREAM_ADMIN_KEY", PLUGIN_SECRET_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    app = App(ProxySettings(data=tmp_path, upstream=("http://127.0.0.1:1",)))
    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        said.append(message)

    asyncio.run(app({"type": "lifespan", "state": {}}, receive, send))
    (failed,) = said
    assert failed["type"] == "lifespan.startup.failed"
    assert failed["message"].startswith(f"the secret in {path} cannot be read (")
    assert "move it away, and a new one is made" in failed["message"]


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BadFolder, match=f"{tmp_path} lies on a file system that cannot lock files .*SLIPSTREAM_DATA"):
        lock.take(tmp_path)


@pytest.mark.parametrize("folder", ["/dev/null", "/proc/nothing/data"])
def test_a_data_folder_that_cannot_be_used_is_one_clear_line(folder: str) -> None:
    with pytest.raises(BadFolder, match=f"the data folder {folder} cannot be used .*SLIPSTREAM_DATA"):
        lock.take(Path(folder))
