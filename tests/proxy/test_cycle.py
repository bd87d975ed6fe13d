"""The server's side of a response: what leaves in one write, what is refused, who hears that a client left."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from proxy.cycle import Cycle
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import CHAT, RunningProxy, request, tags, until

Messages = list[dict[str, Any]]


class Wire(asyncio.Transport):
    """Keeps what is written, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def answer(*messages: dict[str, Any] | None, method: str = "POST", keep_alive: bool = True) -> Wire:
    """What an app's messages are on the wire; None is a wait in which other things happen."""
    wire = Wire()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await (asyncio.sleep(0.01) if message is None else send(message))

    logger = logging.getLogger("test")
    cycle = Cycle(
        asyncio.get_running_loop(),
        scope=cast("Any", {"type": "http", "method": method}),
        transport=wire,
        flow=FlowControl(wire),
        logger=logger,
        access_logger=logger,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )
    await cycle.run_asgi(cast("Any", app))
    return wire


def start(status: int = 200, **headers: bytes) -> dict[str, Any]:
    fields = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": fields}


def body(data: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_head_and_body_leave_in_one_write() -> None:
    assert (await answer(start(content_length=b"2"), body(b"ab"))).writes == [HEAD + b"ab"]
    wire = await answer(start(), body(b"abc", more=True), None, body(b"d", more=True), body())
    assert wire.writes == [CHUNKED + b"3\r\nabc\r\n", b"1\r\nd\r\n", b"0\r\n\r\n"]


async def test_a_head_waits_for_no_body() -> None:
    assert (await answer(start(content_length=b"2"), None, body(b"ab"))).writes == [HEAD, b"ab"]


@pytest.mark.parametrize(
    ("status", "method", "written"),
    [
        (200, "HEAD", HEAD),
        (304, "GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n"),
    ],
)
async def test_some_responses_have_no_body_whatever_their_length(status: int, method: str, written: bytes) -> None:
    assert (await answer(start(status, content_length=b"2"), body(), method=method)).writes == [written]


async def test_a_response_without_an_end_is_cut_off_behind_its_head() -> None:
    wire = await answer(start(content_length=b"2"), body(b"a", more=True))
    assert (wire.writes, wire.closed) == ([HEAD + b"a"], True)
    wire = await answer(start(content_length=b"2"))
    assert (wire.writes, wire.closed) == ([HEAD], True)


@pytest.mark.parametrize("data", [b"a", b"abc"])
async def test_a_body_of_another_length_than_its_head_says_breaks_the_connection(data: bytes) -> None:
    wire = await answer(start(content_length=b"2"), body(data))
    assert (wire.writes, wire.closed) == ([HEAD], True)


async def test_a_connection_that_ends_says_so_once() -> None:
    closes = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    for keep_alive, connection in ((False, b"x"), (False, b"close"), (True, b"x, Close")):
        wire = await answer(start(content_length=b"0", connection=connection), body(), keep_alive=keep_alive)
        assert wire.closed
        assert wire.writes[0].lower().count(b"close") == 1, connection
    assert (await answer(start(content_length=b"0"), body(), keep_alive=False)).writes == [closes]


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"\r", b"a\0", b"\x7f"])
async def test_a_header_cannot_hold_another(value: bytes) -> None:
    wire = await answer(start(x_test=value), body())
    assert b"500 Internal Server Error" not in b"".join(wire.writes)
    assert wire.writes == []
    assert wire.closed


async def test_a_header_may_hold_tabs_and_any_bytes() -> None:
    wire = await answer(start(content_length=b"0", x_test="a\tü".encode()), body())
    assert "x-test: a\tü\r\n".encode() in wire.writes[0]


@pytest.mark.parametrize("size", [100, 70_000, 3_000_000])
def test_a_client_that_leaves_is_noticed_however_large_its_request_was(
    proxy: RunningProxy, fake: FakeVllm, sid: str, size: int
) -> None:
    with raw.connect(proxy.url) as connection:
        body = request("x" * size)
        connection.sendall(raw.head(CHAT, len(body), tags(sid, "slow:600")))
        until(lambda: fake.calls(CHAT) or proxy.client.get("/v1/models").status_code)  # it waits for the body
        connection.sendall(body)
        received = until(lambda: fake.calls(CHAT))[0]
    assert received.cancelled.wait(60)
