"""SIGTERM: calls under way end, new ones are refused, and what is left at the deadline is marked."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.states import CallOutcome
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.conftest import StartProxy
from tests.proxy.running import CHAT, ProxyProcess, Recorded, request, tags, until

StartProcess = Callable[[int], ProxyProcess]


@pytest.fixture
def start(own_fake: FakeVllm, tmp_path: Path) -> Iterator[StartProcess]:
    """Starts `slipstream proxy` with so many seconds to drain."""
    started: list[ProxyProcess] = []

    def process(drain: int) -> ProxyProcess:
        proxy = ProxyProcess(tmp_path / "data", own_fake.url, own_fake.secret or "", SLIPSTREAM_DRAIN=str(drain))
        started.append(proxy)
        proxy.wait()
        return proxy

    yield process
    for proxy in started:
        proxy.kill()


def refused(proxy: ProxyProcess) -> bool:
    try:
        raw.connect(proxy.url).close()
    except ConnectionRefusedError:
        return True
    return False


def begun(fake: FakeVllm, number: int) -> bool:
    return len(fake.calls(CHAT)) == number


def test_calls_under_way_end_and_the_rest_is_marked(own_fake: FakeVllm, start: StartProcess) -> None:
    proxy = start(10)
    with raw.connect(proxy.url) as plain, raw.connect(proxy.url) as stuck, raw.connect(proxy.url) as silent:
        raw.send(plain, CHAT, request("plain"), tags("plain", "slow:1.5", x_session_end="true"))
        raw.send(stuck, CHAT, request("stuck", stream=True), tags("stuck", "stall:2"))
        raw.send(silent, CHAT, request("silent"), tags("silent", "slow:600"))
        raw.read_until(stuck, b"base-mo")
        until(lambda: begun(own_fake, 3))
        proxy.process.send_signal(signal.SIGTERM)
        until(lambda: refused(proxy))
        answer = raw.parse(raw.read_all(plain))
        assert (answer.status, answer.whole) == (200, True)
        assert proxy.process.poll() is None, "the other calls still have their time"
        stuck.settimeout(60)
        assert not raw.parse(b"HTTP/1.1 200 OK\r\n\r\n" + raw.read_all(stuck)).whole
        silent.settimeout(60)
        assert raw.parse(raw.read_all(silent)).status in (0, 500, 503)
    assert proxy.process.wait(60) == -signal.SIGTERM
    recorded = Recorded(proxy.data)
    (call,) = recorded.calls("plain")
    assert (call.outcome, call.not_trainable) == (CallOutcome.COMPLETE, None)
    assert recorded.closed("plain")
    for name in ("stuck", "silent"):
        (call,) = recorded.calls(name)
        assert (call.outcome, call.not_trainable) == (CallOutcome.INTERRUPTED, "the proxy stopped during this call")
        assert not recorded.closed(name), "it goes on after the restart"
    recorded.db.close()


def test_what_has_not_come_whole_is_not_waited_for(own_fake: FakeVllm, start: StartProcess) -> None:
    proxy = start(600)
    body = request("whole")
    whole, half = raw.head(CHAT, len(body), tags("whole", "step")), raw.head(CHAT, 100)
    with raw.connect(proxy.url) as answered, contextlib.ExitStack() as kept:
        answered.sendall(whole + body)
        until(lambda: begun(own_fake, 1))
        unfinished = [kept.enter_context(raw.connect(proxy.url)) for _ in range(4)]
        for connection, sent in zip(unfinished, (b"", half[:20], half, half + body[:10]), strict=True):
            connection.sendall(sent)
        with raw.connect(proxy.url) as last:  # what was sent before this is answered has come
            last.sendall(raw.head("/health", 0, method="GET"))
            raw.read_until(last, b"ok")
        proxy.process.send_signal(signal.SIGTERM)
        assert [raw.read_all(connection) for connection in unfinished] == [b""] * 4
        assert proxy.process.poll() is None, "the call that came whole goes on"
        for _ in range(20):
            own_fake.step()
        assert raw.parse(raw.read_all(answered)).whole
    assert proxy.process.wait(60) == -signal.SIGTERM


def test_a_second_signal_ends_it_at_once(own_fake: FakeVllm, start: StartProcess) -> None:
    proxy = start(600)
    with raw.connect(proxy.url) as stuck:
        raw.send(stuck, CHAT, request("stuck", stream=True), tags("stuck", "stall:2"))
        raw.read_until(stuck, b"base-mo")
        proxy.process.send_signal(signal.SIGTERM)
        until(lambda: refused(proxy))
        assert proxy.process.poll() is None
        proxy.process.send_signal(signal.SIGINT)
        assert proxy.process.wait(60) == 128 + signal.SIGINT
    again = start(0)
    recorded = Recorded(again.data)
    (call,) = recorded.calls("stuck")
    assert call.outcome is CallOutcome.INTERRUPTED
    recorded.db.close()


def test_without_calls_it_ends_at_once(start: StartProcess) -> None:
    proxy = start(600)
    with socket.create_connection(("127.0.0.1", proxy.client.base_url.port or 0)):
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(60) == -signal.SIGTERM


def test_it_is_not_ready_while_it_drains(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    until(lambda: proxy.client.get("/ready").status_code == 200)
    proxy.app.draining = True
    ready = proxy.client.get("/ready")
    assert (ready.status_code, ready.json()["serves"]) == (503, False)
    assert "the proxy is stopping: it takes no new connections" in ready.json()["problems"]
