"""Which headers of an agent's request go on to vLLM, and which of vLLM's response come back."""

from __future__ import annotations

from collections.abc import Iterable

from proxy import capture
from proxy.asgi import Headers
from proxy.tags import TAG_HEADERS

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade"}
)
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"x-auth-token", b"cookie"})
"""A client's own; vLLM's come from the settings."""
_NOT_SENT = (
    _HOP_BY_HOP
    | _CREDENTIALS
    | TAG_HEADERS
    | {b"host", b"content-length", b"expect", b"accept-encoding", capture.HEADER.encode()}
)
_NOT_RETURNED = _HOP_BY_HOP | {b"content-length", capture.HEADER.encode()}


def sent(headers: Headers) -> list[tuple[bytes, bytes]]:
    """A request's headers, as they go to vLLM."""
    named = [v for k, v in headers if k == b"connection"]
    dropped = _NOT_SENT | {token.strip().lower() for v in named for token in v.split(b",")} if named else _NOT_SENT
    return [field for field in headers if field[0] not in dropped]


def returned(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """A response's headers (names in lower case), as they go to the client; its length is for the caller to say."""
    return [field for field in headers if field[0] not in _NOT_RETURNED]
