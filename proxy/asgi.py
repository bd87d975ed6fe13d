"""The ASGI types, and the few things that every raw ASGI app of the proxy does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from proxy.errors import ProxyError, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

MAX_BODY_BYTES = 256 * 1024 * 1024


class ClientGone(Exception):
    """The client closed its connection."""


async def read_body(receive: Receive) -> bytes:
    """The whole request body. Raises `ClientGone` when the client leaves before its end, `TooLarge` above the limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise TooLarge(f"the request is larger than {MAX_BODY_BYTES // 2**20} MiB")
        if not message.get("more_body"):
            return b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """A whole JSON response."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, error: ProxyError, headers: Headers = ()) -> None:
    await respond(send, error.status, error.body, [*headers, *error.headers])
