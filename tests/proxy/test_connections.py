"""Connections to a server that says, byte for byte, what the test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from proxy.connections import Broken, Connections, Response, Unanswered

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Server:
    """Answers the n-th request of a connection with the n-th of ``answers``; closes it where there is none left."""

    answers: tuple[bytes, ...]
    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in self.answers:
            try:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
                break
            writer.write(answer)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(*answers: bytes, path: str = "") -> AsyncIterator[tuple[Server, Connections]]:
    server = Server(answers)
    listening = await asyncio.start_server(server.begin, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    connections = Connections(f"http://127.0.0.1:{server.port}{path}", None)
    try:
        yield server, connections
    finally:
        connections.close()
        listening.close()
        await asyncio.gather(*server.tasks)


async def ask(connections: Connections) -> Response:
    return await connections.ask("GET", b"/v1/models", [(b"x-bytes", b"caf\xe9")], b"")


async def whole(response: Response) -> bytes:
    parts = []
    while data := await response.read():
        parts.append(data)
    return b"".join(parts)


async def test_a_connection_is_used_again() -> None:
    async with serving(OK, OK, path="/base") as (server, connections):
        for _ in range(2):
            response = await ask(connections)
            assert (response.status, response.length, await whole(response)) == (200, 2, b"ok")
        assert server.connections == 1
        host = b"host: 127.0.0.1:%d\r\n" % server.port
        line = b"GET /base/v1/models HTTP/1.1\r\n"
        assert server.requests == [line + host + b"x-bytes: caf\xe9\r\ncontent-length: 0\r\n\r\n"] * 2


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nA: b\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Trailer: t\r\n\r\n", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (OK + b"more than it said", b"ok"),
    ],
)
async def test_where_a_body_ends(answer: bytes, body: bytes) -> None:
    async with serving(answer) as (_, connections):
        response = await ask(connections)
        assert await whole(response) == body
        assert response.complete


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", Unanswered),
        (b"HTTP/1.1 200 OK\r\nContent-Le", Broken),
        (b"SSH-2.0-OpenSSH\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 2**20 + b"\r\n", Broken),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", Broken),
    ],
)
async def test_no_head_comes(answer: bytes, error: type[Exception]) -> None:
    async with serving(answer) as (_, connections):
        with pytest.raises(error):
            await ask(connections)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nno chunk\r\n",
    ],
)
async def test_a_body_breaks_off_behind_what_came(answer: bytes) -> None:
    async with serving(answer) as (_, connections):
        response = await ask(connections)
        assert await response.read() == b"ok"
        with pytest.raises(Broken):
            await response.read()


async def test_a_server_that_is_read_slowly_waits_and_its_connection_is_used_again() -> None:
    size = 30_000_000
    large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
    async with serving(large, OK) as (server, connections):
        response = await ask(connections)
        await asyncio.sleep(0.2)
        first = await response.read()
        assert len(first) < 5_000_000, "what nobody reads yet stays with the server"
        assert len(first) + len(await whole(response)) == size
        assert await whole(await ask(connections)) == b"ok"
        assert server.connections == 1


async def test_what_a_kept_connection_does_not_answer_goes_over_a_new_one_once() -> None:
    async with serving(OK, b"") as (server, connections):
        for _ in range(2):
            assert await whole(await ask(connections)) == b"ok"
        assert (server.connections, len(server.requests)) == (2, 3)
    async with serving(b"") as (server, connections):
        with pytest.raises(Unanswered):
            await ask(connections)
        assert (server.connections, len(server.requests)) == (1, 1)


async def test_a_response_ahead_of_its_request_ends_the_connection() -> None:
    async with serving(OK, OK) as (server, connections):
        response = await connections.ask("POST", b"/v1/embeddings", [], bytes(30_000_000))
        assert await whole(response) == b"ok"
        assert await whole(await ask(connections)) == b"ok"
        assert server.connections == 2


async def test_a_response_that_is_closed_early_closes_its_connection() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", OK) as (server, connections):
        response = await ask(connections)
        response.close()
        (await ask(connections)).close()
        assert server.connections == 2


@pytest.mark.parametrize("close", [Connections.close_old, Connections.close])
async def test_old_connections_are_closed(
    close: Callable[[Connections], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(OK, OK) as (server, connections):
        await whole(await ask(connections))
        monkeypatch.setattr("proxy.connections.KEEPALIVE_SECONDS", 0.0)
        close(connections)
        await whole(await ask(connections))
        assert server.connections == 2


async def test_names_and_passwords_in_the_address() -> None:
    async with serving(OK) as (server, _):
        connections = Connections(f"http://me:secret@127.0.0.1:{server.port}", None)
        await whole(await ask(connections))
        connections.close()
        assert b"\r\nauthorization: Basic bWU6c2VjcmV0\r\n" in server.requests[0]
        assert b"\r\nhost: 127.0.0.1:%d\r\n" % server.port in server.requests[0]
    with pytest.raises(ValueError, match="has no host"):
        Connections("http://", None)


async def test_trailers_are_not_headers() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Late: 1\r\nServer: other\r\n\r\n"
    async with serving(answer) as (_, connections):
        response = await ask(connections)
        assert await whole(response) == b"ok"
        assert response.headers == [(b"transfer-encoding", b"chunked")]
