"""Clients that look at bytes: a request over a socket, and a response taken apart."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

OURS = (b"x-call-id", b"x-session-id", b"x-policy-version", b"x-slipstream-recorded")


@dataclass(frozen=True, slots=True)
class RawResponse:
    """A response as it stood on the wire."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    """Chunks joined; what came of them, where the connection broke."""
    whole: bool
    """It ended as HTTP says that it ends."""

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    @property
    def foreign(self) -> list[tuple[bytes, bytes]]:
        """The headers that are not the proxy's own, in an order that does not matter."""
        return sorted(pair for pair in self.headers if pair[0] not in OURS)


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


Headers = Mapping[str, str | bytes]


def send(
    connection: socket.socket, path: str, body: bytes, headers: Headers | None = None, method: str = "POST"
) -> None:
    """A request, on the wire; of JSON where ``headers`` do not say otherwise."""
    connection.sendall(head(path, len(body), headers, method) + body)


def head(path: str, length: int, headers: Headers | None = None, method: str = "POST") -> bytes:
    """The head of a request whose body has ``length`` bytes."""
    if not any(name.lower() == "content-type" for name in headers or ()):
        headers = {"content-type": "application/json", **(headers or {})}
    lines = [b"%b %b HTTP/1.1" % (method.encode(), path.encode()), b"host: here", b"content-length: %d" % length]
    for name, value in (headers or {}).items():
        lines.append(name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def ask(url: str, path: str, body: bytes, headers: Headers | None = None, method: str = "POST") -> RawResponse:
    """A request on a connection of its own, and all that comes back."""
    with connect(url) as connection:
        send(connection, path, body, {"connection": "close", **(headers or {})}, method)
        return parse(read_all(connection))


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while True:
        try:
            data = connection.recv(65536)
        except ConnectionResetError:
            break
        if not data:
            break
        parts.append(data)
    return b"".join(parts)


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    """What comes, up to and with ``wanted``."""
    data = b""
    while wanted not in data:
        data += receive(connection)
    return data


def receive(connection: socket.socket) -> bytes:
    """What comes next."""
    more = connection.recv(65536)
    assert more, "the connection ended before what was to come"
    return more


def parse(data: bytes) -> RawResponse:
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return RawResponse(0, [], b"", False)
    first, *lines = head.split(b"\r\n")
    pairs = [line.split(b": ", 1) for line in lines]
    headers = [(name.lower(), value) for name, value in pairs]
    names = dict(headers)
    status = int(first.split(b" ")[1])
    if b"content-length" in names:
        return RawResponse(status, headers, rest, len(rest) == int(names[b"content-length"]))
    body, whole = _unchunk(rest)
    return RawResponse(status, headers, body, whole)


def _unchunk(data: bytes) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    while data:
        size, found, data = data.partition(b"\r\n")
        if not found:
            break
        length = int(size, 16)
        if length == 0:
            return b"".join(parts), data == b"\r\n"
        parts.append(data[:length])
        data = data[length + 2 :]
    return b"".join(parts), False
