"""Which headers of an agent's request go on to vLLM, and which of vLLM's response come back."""

from __future__ import annotations

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
    dropped = _with_named(_NOT_SENT, headers)
    return [field for field in headers if field[0] not in dropped]


def returned(headers: Headers) -> list[tuple[bytes, bytes]]:
    """A response's headers (names in lower case), as they go to the client; its length is for the caller to say."""
    dropped = _with_named(_NOT_RETURNED, headers)
    return [field for field in headers if field[0] not in dropped]


def _with_named(dropped: frozenset[bytes], headers: Headers) -> frozenset[bytes]:
    """``dropped``, and what the headers themselves say is for one connection alone."""
    named = [value for name, value in headers if name == b"connection"]
    return dropped | {token.strip().lower() for value in named for token in value.split(b",")} if named else dropped
