"""A client that leaves, at any phase, on any route: vLLM stops, nothing stays open, what was said is on record."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.dialects import DIALECTS
from storage.states import CallOutcome
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.conftest import StartProxy
from tests.proxy.generated import AUDIO, Generated
from tests.proxy.running import CHAT, Recorded, RunningProxy, request, tags, until
from tests.proxy.test_differential import PATHS, asking

Route = tuple[str, str, bool]
"""Method, path, and whether it streams."""
STREAMS = (*DIALECTS, AUDIO[0])
ROUTES: list[Route] = [*((method, path, False) for method, path in PATHS), *(("POST", path, True) for path in STREAMS)]
_SECONDS = 60.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeVllm, RunningProxy]]:
    """A proxy that takes one call at a time: as long as it refuses the next one, something of the last is left."""
    with FakeVllm() as fake:
        proxy = RunningProxy(tmp_path_factory.mktemp("gone") / "data", (fake.url,), fake.secret, limit={"calls": 1})
        yield fake, proxy
        proxy.stop()


def _asked(route: Route) -> Generated:
    method, path, stream = route
    if path in STREAMS:
        return asking(path, stream=stream)
    body = b"" if method == "GET" else b'{"model": "base-model", "input": "x", "messages": [], "tokens": [1]}'
    return Generated(method, path, body, {"content-type": "application/json"})


def _is_free(proxy: RunningProxy) -> bool:
    return proxy.client.get("/v1/models").status_code == 200


def _leave_abruptly(connection: socket.socket) -> None:
    """As a process that is killed: the kernel resets its connections."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("moment", ["before the head", "in the body", "in the body, abruptly"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: " ".join(map(str, route)))
def test_a_client_that_leaves_cancels_vllm(
    fake: FakeVllm, proxy: RunningProxy, recorded: Recorded, sid: str, route: Route, moment: str
) -> None:
    method, path, stream = route
    asked = _asked(route)
    fault = "slow:600" if moment == "before the head" else "halt"
    came = b""
    with raw.connect(proxy.url) as connection:
        raw.send(connection, path, asked.body, {**asked.headers, **tags(sid, fault)}, method)
        received = until(lambda: fake.calls(path))[0]
        if moment != "before the head":
            came = raw.read_until(connection, b"\r\n\r\n")
            if stream:  # else it may be the plugin's frame that stands half there
                came += raw.receive(connection) if came.endswith(b"\r\n\r\n") else b""
        if moment.endswith("abruptly"):
            _leave_abruptly(connection)
    assert received.cancelled.wait(_SECONDS), "vLLM's connection is closed, and with it the work ends"
    until(lambda: _is_free(proxy))
    if "/v1/responses/" in path:
        return
    (call,) = recorded.calls(sid)
    row = recorded.row(call.seq)
    assert call.outcome is CallOutcome.CLIENT_GONE
    assert call.not_trainable == "the client left before the end of the response"
    assert (row["status"] is None) == (moment == "before the head")
    assert row["request"] == asked.body
    said = raw.parse(came).body
    assert row["response"].startswith(said)
    assert said or not stream or moment == "before the head"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: " ".join(map(str, route)))
def test_a_client_that_leaves_while_it_sends_has_asked_nothing(
    fake: FakeVllm, proxy: RunningProxy, recorded: Recorded, sid: str, route: Route
) -> None:
    method, path, _ = route
    asked = _asked(route)
    with raw.connect(proxy.url) as connection:
        body = asked.body or b"some"
        connection.sendall(raw.head(path, len(body), {**asked.headers, **tags(sid)}, method) + body[:-1])
        until(lambda: not _is_free(proxy))  # it is being read
    until(lambda: _is_free(proxy))
    assert fake.calls(path) == []
    assert proxy.chat(headers=tags(f"behind {sid}")).status_code == 200
    recorded.calls(f"behind {sid}")
    assert recorded.session(sid) is None


def test_many_clients_that_leave_leak_nothing(own_fake: FakeVllm, start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    recorded = Recorded(proxy.data)

    def leave(number: int) -> None:
        fault = ("slow:600", "halt")[number % 2]
        with raw.connect(proxy.url) as connection:
            raw.send(connection, CHAT, request(f"caller {number}", stream=number % 3 == 0), tags("many", fault))
            mine = b'caller %d"' % number
            received = until(lambda: [one for one in own_fake.calls() if mine in one.body])[0]
            if fault == "halt":
                raw.read_until(connection, b"\r\n\r\n")
        assert received.cancelled.wait(_SECONDS)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(leave, range(40)))
    assert {call.outcome for call in recorded.calls("many", 40)} == {CallOutcome.CLIENT_GONE}
    assert proxy.chat(headers=tags("many", x_session_end="true")).status_code == 200
    until(lambda: recorded.closed("many"))  # which no call under way would allow
    # What is left: the connection of the looks at vLLM, and for a while the one of the last call.
    until(lambda: own_fake.connections <= 1)
    recorded.db.close()
