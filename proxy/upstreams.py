"""The vLLM servers: whether each answers, runs the plugin, and which adapters it has loaded."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from proxy import capture
from proxy.connections import KEEPALIVE_SECONDS, Connections, Field, Response
from proxy.errors import UpstreamFault, UpstreamUnreachable, VersionLoading
from storage.secrecy import Secrets
from storage.text import counted
from storage.types import BASE, VersionNumber, parse_version

_CHECK = aiohttp.ClientTimeout(total=10, sock_connect=5)
_LATE_CHECKS = 6
"""So many looks in a row may time out before a server counts as gone: a busy vLLM answers late, and serves."""
_ASK = aiohttp.ClientTimeout(total=120)
NO_PLUGIN = (
    "vLLM runs without Slipstream's plugin, or with another SLIPSTREAM_PLUGIN_SECRET. Its chat and text completions "
    "are recorded with the tokens that it tells (frames may then differ a little from its own), all else without, and "
    "most calls cannot be trained on: start it with `--middleware proxy.vllm_plugin.capture.CaptureMiddleware` "
    "(README, «A vLLM that already runs»)"
)


@dataclass(slots=True, eq=False)
class Upstream:
    """One vLLM server, as it was at the last look."""

    url: str
    problem: str | None = "not asked yet"
    """Why it cannot serve agents, with what to do; None when it can."""
    plugin: bool = True
    """It runs Slipstream's plugin, with our secret: the mark names who answers, and the response carries the tokens."""
    base: str | None = None
    """The base model's name there."""
    root: str | None = None
    """Where its weights come from: a folder or a hub's name."""
    adapters: dict[str, str] = field(default_factory=dict)
    """Adapters that vLLM lists, with the folder of each."""
    models: tuple[dict[str, Any], ...] = ()
    serves: set[VersionNumber] = field(default_factory=set)
    """Versions that sessions may be sent to: loaded and probed."""
    late_checks: int = 0
    """Looks in a row that timed out: all the above is as it was before them."""

    @property
    def lack(self) -> str | None:
        """What it does not do for us, with what to do; None when nothing is missing."""
        return None if self.plugin or self.problem else NO_PLUGIN

    @property
    def doubt(self) -> str | None:
        """Why what is known of it may no longer be so; None right after a look that was answered."""
        late = f"GET /v1/models timed out {counted(self.late_checks, 'time')}" if self.late_checks else None
        return self.problem or late


class Upstreams:
    """All vLLM servers, the connections to them, and the choice of one for a session."""

    def __init__(self, urls: tuple[str, ...], secret: str, api_key: str | None, model: str | None) -> None:
        self._secret = secret
        self.secrets = Secrets(secret, api_key)
        """What vLLM is sent and nobody else may read."""
        self._model = model
        self._key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.all = tuple(Upstream(url) for url in urls)
        self._connections = {url: Connections(url, api_key) for url in urls}
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
        self._client = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),  # one client's cookies are not another's
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            read_bufsize=2**20,
            max_line_size=2**20,
            max_field_size=2**20,
            skip_auto_headers=("Accept", "Content-Type", "User-Agent"),
            headers=self._key,
        )

    async def stop(self) -> None:
        for connections in self._connections.values():
            connections.close()
        if self._client is not None:
            await self._client.close()

    @property
    def client(self) -> aiohttp.ClientSession:
        assert self._client is not None, "start() comes first"
        return self._client

    def header(self, nonce: str, model: str | None, exploration: capture.Exploration | None = None) -> str:
        return capture.request_header(self._secret, nonce, model, exploration)

    def ask(
        self, upstream: Upstream, method: str, target: bytes, fields: Sequence[Field], body: bytes
    ) -> Awaitable[Response]:
        """Send an agent's request; its response when the head has come. Raises as `Connections.ask` does."""
        return self._connections[upstream.url].ask(method, target, fields, body)

    def choose(self, session_id: str, version: VersionNumber | None) -> Upstream:
        """The server for a session: the same one for all its calls while it can serve (prefix cache).

        ``version`` None: any that answers. Raises `UpstreamUnreachable` when none answers, `VersionLoading` when
        those that do cannot serve this version now.
        """
        able = [u for u in self.all if u.problem is None]
        serving = [u for u in able if version is None or version in u.serves]
        if serving:
            return serving[zlib.crc32(session_id.encode()) % len(serving)]
        if version is not None and able:
            raise VersionLoading(version)
        if not self.all:
            raise UpstreamUnreachable("no vLLM server is configured: set SLIPSTREAM_UPSTREAM")
        raise UpstreamUnreachable("; ".join(f"{u.url}: {u.problem}" for u in self.all))

    async def check(self, upstream: Upstream, policy: str) -> None:
        """Look at a server anew: does it answer, with the plugin, and what has it loaded?"""
        try:
            async with self.client.get(
                upstream.url + "/v1/models",
                headers={capture.HEADER: self.header(capture.new_nonce(), None)},
                timeout=_CHECK,
                allow_redirects=False,  # the secrets are for this address alone
            ) as response:
                body = await response.read()
                header = response.headers.get(capture.HEADER)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            upstream.late_checks += 1
            late = isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)
            if not late or upstream.problem is not None or upstream.late_checks > _LATE_CHECKS:
                upstream.problem = (
                    f"vLLM does not answer ({_short(error)}): is it running at this address? "
                    f"(One that `serve` starts needs about a minute.)"
                )
                upstream.serves.clear()
            return
        upstream.late_checks = 0
        if response.status != 200:
            upstream.problem = f"GET /v1/models was answered with {response.status}: {self._text(body)}"
            return
        upstream.plugin = capture.frame_length(header) is not None
        try:
            self._read_models(upstream, body, policy)
        except (ValueError, LookupError, TypeError, AttributeError):
            upstream.problem = f"GET /v1/models was answered with no list of models: {self._text(body)}"

    def _read_models(self, upstream: Upstream, body: bytes, policy: str) -> None:
        models = orjson.loads(body)["data"]
        bases = [m for m in models if m.get("parent") is None]
        wanted = self._model or (bases[0]["id"] if bases else None)
        base = next((m for m in bases if m["id"] == wanted), None)
        if base is None:
            names = ", ".join(m["id"] for m in bases)
            upstream.problem = (
                f"vLLM serves {names}, not {wanted}: set SLIPSTREAM_MODEL to a model that it serves"
                if bases
                else "vLLM serves no model at all: start it with one"
            )
            return
        upstream.base, upstream.root = base["id"], base.get("root") or base["id"]
        upstream.models = tuple(models)
        upstream.adapters = {m["id"]: m.get("root") or "" for m in models if m.get("parent") is not None}
        loaded = {parse_version(policy, name) for name in upstream.adapters}
        upstream.serves = {v for v in upstream.serves if v in loaded} | {BASE}
        upstream.problem = None

    async def post(self, upstream: Upstream, path: str, document: Any, model: str | None = None) -> bytes:
        """The proxy's own request. ``model`` names the version that answers, by the way that agents' calls take.

        Raises `UpstreamFault` with vLLM's text when the answer is not 200.
        """
        mark = {capture.HEADER: self.header(capture.new_nonce(), model)} if upstream.plugin else {}
        if model is not None and not upstream.plugin:
            document = {**document, "model": model}
        try:
            async with self.client.post(
                upstream.url + path,
                data=orjson.dumps(document),
                headers={"Content-Type": "application/json", **mark},
                timeout=_ASK,
                allow_redirects=False,
            ) as response:
                body = await response.read()
                header = response.headers.get(capture.HEADER)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UpstreamFault(f"{path} at {upstream.url}: {_short(error)}") from error
        if response.status != 200:
            text = f"{path} at {upstream.url} was answered with {response.status}: {self._text(body)}"
            raise UpstreamFault(text, response.status)
        return body[capture.frame_length(header) or 0 :]

    def _text(self, body: bytes) -> str:
        return self.secrets.blot(body)[:500].decode("utf-8", "replace")

    async def check_all(self, policy: str) -> None:
        for connections in self._connections.values():
            connections.close_old()
        await asyncio.gather(*(self.check(upstream, policy) for upstream in self.all))


def _short(error: BaseException) -> str:
    return str(error) or type(error).__name__
