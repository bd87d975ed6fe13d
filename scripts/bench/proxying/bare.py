"""The limit: a raw ASGI app that passes a call on with aiohttp and does nothing else. Slipstream's own server settings.

Run as ``python -m scripts.bench.proxying.bare UPSTREAM PORT``.
"""

from __future__ import annotations

import sys

import aiohttp
import uvicorn
from yarl import URL

from proxy.asgi import Message, Receive, Scope, Send

_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"host"})


class Bare:
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._client: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        assert self._client is not None
        body = b""
        more = True
        while more:
            message: Message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        url = URL(self._upstream + scope["path"], encoded=True)
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"] if n not in _HOP_BY_HOP]
        async with self._client.request(scope["method"], url, data=body, headers=headers) as response:
            returned = [(n, v) for n, v in response.raw_headers if n.lower() not in _HOP_BY_HOP]
            if response.content_length is not None:
                returned.append((b"content-length", str(response.content_length).encode()))
            await send({"type": "http.response.start", "status": response.status, "headers": returned})
            async for data in response.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            read_bufsize=2**20,
            skip_auto_headers=("Accept", "Content-Type", "User-Agent"),
        )
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._client.close()
        await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    uvicorn.run(
        Bare(sys.argv[1]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        loop="uvloop",
        http="httptools",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
    )
