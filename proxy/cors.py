"""Browsers as clients: which origins may read an answer is vLLM's to say, also where Slipstream itself answers.

A browser asks before it sends (a *preflight*: OPTIONS, without a key), and hides from its page what the answer does not
open to the page's origin. vLLM 0.32 opens nothing by default, else what its `--allowed-origins` names.
"""

from __future__ import annotations

import asyncio

from proxy import headers
from proxy.asgi import Message, Scope, Send, respond
from proxy.connections import Field
from proxy.errors import UpstreamUnreachable
from proxy.paths import vllm_path
from proxy.upstreams import Upstreams

_ORIGIN = b"origin"
_METHOD = b"access-control-request-method"
_OPENS = (b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-expose-headers")
_SAYS = (b"vary", *_OPENS)
_MODELS = "/v1/models"
_ASK_SECONDS = 10


def is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and _has(scope, _ORIGIN) and _has(scope, _METHOD)


class Cors:
    """What vLLM says of origins."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams

    async def preflight(self, scope: Scope, send: Send, *, own: bool) -> None:
        """vLLM's answer to a preflight; ``own``: for a path of Slipstream's own, which vLLM answers as for its models.

        Raises `NoSuchPath` for what is not forwarded, `UpstreamUnreachable`.
        """
        path = _MODELS if own else vllm_path(scope["raw_path"])
        query = scope["query_string"]
        target = path.encode() + (b"?" + query if query else b"")
        status, head, body = await self._ask(target, headers.sent(scope["headers"]))
        await respond(send, status, body, headers.returned(head), content_type=None)

    def opened(self, scope: Scope, send: Send) -> Send:
        """``send``, where an answer that says nothing of origins says what vLLM would; for requests of a browser."""
        if not _has(scope, _ORIGIN):
            return send

        async def completed(message: Message) -> None:
            if message["type"] == "http.response.start" and not any(key in _SAYS for key, _ in message["headers"]):
                message = {**message, "headers": [*message["headers"], *await self._openings(scope)]}
            await send(message)

        return completed

    async def _openings(self, scope: Scope) -> list[Field]:
        """The headers that open an answer to the request's origin; none where vLLM cannot be asked."""
        origin = [field for field in scope["headers"] if field[0] == _ORIGIN]
        try:
            _, head, _ = await self._ask(_MODELS.encode(), [*origin, (_METHOD, b"GET")])
        except UpstreamUnreachable:
            return []
        return [(b"vary", b"Origin"), *(field for field in head if field[0] in _OPENS)]

    async def _ask(self, target: bytes, fields: list[Field]) -> tuple[int, list[Field], bytes]:
        """Status, headers and body of vLLM's answer to OPTIONS. Raises `UpstreamUnreachable`."""
        upstream = self._upstreams.choose("", None)
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                response = await self._upstreams.ask(upstream, "OPTIONS", target, fields, b"")
                try:
                    parts = []
                    while data := await response.read():
                        parts.append(data)
                finally:
                    response.close()
        except OSError as error:
            raise UpstreamUnreachable(f"vLLM at {upstream.url} does not answer: {error}") from error
        return response.status, response.headers, b"".join(parts)


def _has(scope: Scope, name: bytes) -> bool:
    return any(key == name for key, _ in scope["headers"])
