"""Requests that never come whole: the client is told, its connection is closed, and nothing else is disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.patience import SECONDS, Patience
from proxy.server import Protocol
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import CHAT, RunningProxy, request, tags, until

CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"


class Hasty(Protocol):
    """As in use, with less patience."""

    seconds = 0.2
    looked = 0

    def _late(self) -> None:
        Hasty.looked += 1
        super()._late()


@pytest.fixture
def proxy(own_fake: FakeVllm, tmp_path: Path) -> Iterator[RunningProxy]:
    running = RunningProxy(tmp_path / "data", (own_fake.url,), own_fake.secret, protocol=Hasty)
    yield running
    running.stop()


HEADS = [b"P", b"\r\n", raw.head(CHAT, 100)[:-2], b"GET /v1/models?" + b"a" * 1000]
BODIES = [raw.head(CHAT, 100), raw.head(CHAT, 100) + b'{"model"', CHUNKED, CHUNKED + b"5\r\n12345\r\n0\r\nx-trailer: 1"]


@pytest.mark.parametrize("sent", [*HEADS, *BODIES])
def test_a_request_that_does_not_come_whole_is_told(proxy: RunningProxy, own_fake: FakeVllm, sent: bytes) -> None:
    with raw.connect(proxy.url) as connection:
        connection.sendall(sent)
        answer = raw.parse(raw.read_all(connection))
    assert (answer.status, answer.whole, answer.all(b"connection")) == (408, True, [b"close"])
    text = "body of the request stopped coming" if sent in BODIES else "head of the request did not come whole"
    assert orjson.loads(answer.body)["error"]["message"] == f"the {text} for 0.2 seconds"
    assert own_fake.calls() == []
    assert proxy.chat().status_code == 200


def test_behind_an_answer_it_is_told_as_well(proxy: RunningProxy) -> None:
    with raw.connect(proxy.url) as connection:
        connection.sendall(raw.head("/health", 0, method="GET") + b"POST /v1")
        data = raw.read_all(connection)
    assert data.startswith(b"HTTP/1.1 200 OK")
    assert data.count(b"HTTP/1.1 408 Request Timeout") == 1


def test_a_connection_on_which_nothing_comes_is_closed_without_a_word(proxy: RunningProxy) -> None:
    with raw.connect(proxy.url) as connection:
        assert raw.read_all(connection) == b""


def test_half_a_request_does_not_cut_off_the_answer_to_the_one_before(proxy: RunningProxy, own_fake: FakeVllm) -> None:
    body = request("first", stream=True)
    with raw.connect(proxy.url) as connection:
        connection.sendall(raw.head(CHAT, len(body), tags("first", "step")) + body + b"POST /v1")
        until(lambda: len(own_fake.calls()) == 1)
        seen = Hasty.looked
        until(lambda: Hasty.looked > seen + 1)
        for _ in range(100):
            own_fake.step()
        data = raw.read_all(connection)
    assert b"data: [DONE]\n\n" in data
    assert b"HTTP/1.1 408 Request Timeout" in data.partition(b"data: [DONE]")[2]


def test_what_is_refused_before_its_body_came_is_told_once(proxy: RunningProxy) -> None:
    with raw.connect(proxy.url) as connection:
        connection.sendall(raw.head(CHAT, 2**40))
        data = raw.read_all(connection)
    assert data.startswith(b"HTTP/1.1 413")
    assert data.count(b"HTTP/1.1") == 1


class Clock:
    """A loop that has nothing but timers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self, when, callback))
        return self.timers[-1]

    def run(self, until: float) -> None:
        while due := [timer for timer in self.timers if timer.when <= until]:
            first = min(due, key=lambda timer: timer.when)
            self.timers.remove(first)
            self.now = first.when
            first.callback()
        self.now = until


class Timer:
    def __init__(self, clock: Clock, when: float, callback: Callable[[], None]) -> None:
        self.clock, self.when, self.callback = clock, when, callback

    def cancel(self) -> None:
        self.clock.timers.remove(self)


def test_pieces_in_time_are_waited_for_with_one_timer() -> None:
    clock, late = Clock(), list[float]()
    loop: Any = clock
    patience = Patience(loop, SECONDS, lambda: late.append(clock.now))
    for at in (0, 20, 40, 60):
        clock.run(at)
        patience.begin()
        assert (patience.waits, len(clock.timers)) == (True, 1)
    clock.run(89)
    assert late == []
    clock.run(200)
    assert (late, patience.waits, clock.timers) == ([90], False, [])
    patience.begin()
    patience.end()
    patience.end()
    clock.run(1000)
    assert (late, clock.timers) == ([90], [])
