"""The ASGI types, and the few things that every raw ASGI app of the proxy does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol, cast

from proxy.errors import ProxyError, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


CLIENT = "slipstream.client"
"""The scope's extension that holds the `Client`."""


class Client(Protocol):
    """The client's end of a request's connection.

    ASGI's own way to learn that a client has left is a task that waits in ``receive``: it costs each call more than
    the whole reading of its body.
    """

    @property
    def gone(self) -> bool: ...

    def watch(self, act: Callable[[], object]) -> None:
        """``act`` is called when the client leaves; at once where it has left."""
        ...

    def unwatch(self, act: Callable[[], object]) -> None:
        """Not any more."""
        ...


def client_of(scope: Scope) -> Client:
    return cast("Client", scope["extensions"][CLIENT])


class ClientGone(Exception):
    """The client closed its connection."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole request body. Raises `ClientGone` when the client leaves before its end, `TooLarge` above ``limit``."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise TooLarge.than(limit)
        if not message.get("more_body"):
            return b"".join(parts)


def limited(receive: Receive, limit: int) -> Receive:
    """``receive`` for an app that reads whatever comes: raises `TooLarge` when a body has more than ``limit`` bytes."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise TooLarge.than(limit)
        return message

    return counted


async def respond(
    send: Send, status: int, body: bytes, headers: Headers = (), *, content_type: bytes | None = b"application/json"
) -> None:
    """A whole response; ``content_type`` None: it stands among ``headers``."""
    fixed = [] if content_type is None else [(b"content-type", content_type)]
    fixed.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, error: ProxyError, headers: Headers = (), *, path: str) -> None:
    """An error, in the form that the clients of ``path`` read."""
    body = error.anthropic_body if path.endswith(("/v1/messages", "/v1/messages/count_tokens")) else error.body
    await respond(send, error.status, body, [*headers, *error.headers])
