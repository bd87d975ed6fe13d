"""The proxy as one ASGI app: agents' calls go a raw way, everything else goes to FastAPI."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import IO, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from proxy import lock, secrets
from proxy.admin.bodies import as_json
from proxy.admin.context import Context
from proxy.admin.docs import docs_router
from proxy.admin.keys import keys_router
from proxy.admin.refusals import refuse_body, say_unusable
from proxy.admin.routes import admin_router, open_router
from proxy.asgi import Receive, Scope, Send, limited, respond_error
from proxy.client_api import ClientApi, serves
from proxy.cors import Cors, is_preflight
from proxy.errors import CannotServe, ProxyError
from proxy.forward import Forward
from proxy.inference import Inference
from proxy.ingesting import Task
from proxy.ingestion import IngestionProcess
from proxy.keys import ClientKeys, check_bind, digest, is_public
from proxy.limits import Limits
from proxy.recorder import Recorder
from proxy.sessions import SessionTable
from proxy.settings import ProxySettings
from proxy.store import Store, open_store
from proxy.upstreams import Upstreams
from proxy.versions import Policy
from storage.database import DatabaseError
from storage.ingest import Status
from storage.journal import JournalWriter
from storage.types import DEFAULT_OWNER

_log = logging.getLogger("slipstream.proxy")

_STEP_SECONDS = 1.0
_ADMIN = ("/admin", "/health", "/ready")
"""What FastAPI serves; all else is an agent's."""
_ADMIN_BODY_BYTES = 2**20


class App:
    """The ASGI callable that uvicorn serves. Builds everything in its lifespan, so that importing costs nothing."""

    def __init__(self, settings: ProxySettings, *, step_seconds: float = _STEP_SECONDS) -> None:
        """``step_seconds`` lie between two looks at vLLM, at new versions and at idle sessions."""
        self.settings = settings
        self.draining = False
        """The process is stopping: calls under way end, new ones should go elsewhere."""
        self._step_seconds = step_seconds
        self.fastapi = FastAPI(
            title="Slipstream",
            docs_url=None,  # `docs_router`
            openapi_url="/admin/openapi.json",
            redoc_url=None,
            lifespan=self._lifespan,
        )
        self.fastapi.include_router(open_router)
        self.fastapi.include_router(docs_router)
        self.fastapi.include_router(admin_router)
        self.fastapi.include_router(keys_router)
        self.fastapi.add_exception_handler(RequestValidationError, refuse_body)
        self.fastapi.add_exception_handler(DatabaseError, say_unusable)
        self._admin: Any = ProxyHeadersMiddleware(self.fastapi)  # type: ignore[arg-type]  # redirects say https
        self._store: Store | None = None
        self._ingestion_lock: IO[str] | None = None
        self._admin_key = self._plugin_secret = ""
        self._keys: ClientKeys | None = None
        self._limits = Limits(settings.limit)
        self._forward: Forward | None = None
        self._client_api: ClientApi | None = None
        self._cors: Cors | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["path"].startswith(_ADMIN):
            await self._admin(as_json(scope), limited(receive, _ADMIN_BODY_BYTES), send)
        else:
            await self._admit(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An agent's request: whose it is, and whether it may come in."""
        assert self._keys is not None
        assert self._client_api is not None
        assert self._forward is not None
        assert self._cors is not None
        send = self._cors.opened(scope, send)
        try:
            self._limits.check_headers(scope["headers"])
            if is_preflight(scope):  # browsers send them without a key
                with self._limits.under_way(DEFAULT_OWNER):
                    await self._cors.preflight(scope, send, own=serves(scope))
                return
            owner = self._keys.owner(scope["headers"])
            with self._limits.under_way(owner):
                serve = self._client_api if serves(scope) else self._forward
                await serve(scope, receive, send, owner)
        except ProxyError as error:
            await respond_error(send, error, path=scope["path"])

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The lifespan, with the data folder locked before anything in it is opened."""
        data = self.settings.data
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(lock.take(data))
                self._ingestion_lock = held.enter_context(await asyncio.to_thread(lock.take_ingestion, data))
                check_bind(self.settings)
                self._admin_key = secrets.admin_key(self.settings, print, shown=sys.stdout.isatty())
                self._plugin_secret = secrets.plugin_secret(data)
                self._store = held.enter_context(open_store(self.settings))
            except CannotServe as error:
                await receive()
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await self.fastapi(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as held:
            loops = await self._build(held)
            try:
                yield
            finally:
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)

    async def _build(self, held: contextlib.AsyncExitStack) -> list[asyncio.Task[None]]:
        """Everything that serves, and what is to be closed behind it; returns the loops that look after it."""
        settings = self.settings
        upstream_key = settings.upstream_api_key.get_secret_value() if settings.upstream_api_key else None
        upstreams = Upstreams(settings.upstream, self._plugin_secret, upstream_key, settings.model)
        # One connection each for the event loop and for the loop of the versions, which works in threads.
        store = self._store
        assert store is not None
        db, versions_db = (held.enter_context(contextlib.closing(store.connect())) for _ in range(2))
        fsync = os.fsync if settings.fsync else None
        journal = held.enter_context(
            contextlib.closing(JournalWriter(settings.journal, after=store.after, fsync=fsync))
        )
        assert self._ingestion_lock is not None
        ingestion = await held.enter_async_context(_ingesting(settings, store, journal, self._ingestion_lock))
        recorder = Recorder(journal)
        policy = Policy(versions_db, settings.policy, settings.adapters, upstreams)
        table = SessionTable(db, recorder, policy.live)
        inference = Inference(table.has_ended, settings.session.idle)
        inference.restore(db)
        held.push_async_callback(upstreams.stop)
        await upstreams.start()
        await upstreams.check_all(settings.policy)
        self._keys = ClientKeys(db, needed=is_public(settings.host))
        self._forward = Forward(settings, self._limits, upstreams, policy, table, inference, recorder)
        self._cors = Cors(upstreams)
        self._client_api = ClientApi(upstreams, table, recorder, settings.alias)
        self.fastapi.state.context = Context(
            settings,
            store,
            digest(self._admin_key.encode()),
            self._keys,
            upstreams,
            policy,
            table,
            recorder,
            ingestion,
            lambda: self.draining,
        )
        loops = [
            self._loop("sessions", lambda: _look_after_sessions(table, recorder, journal, settings.session.idle)),
            self._loop("versions", lambda: _look_after_versions(upstreams, policy, table, store)),
        ]
        if not ingestion().caught_up:
            loops.append(asyncio.create_task(_take_over_late(ingestion, table, lambda: inference.restore(db))))
        return loops

    def _loop(self, name: str, step: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(_repeat(name, step, self._step_seconds))


@contextlib.asynccontextmanager
async def _ingesting(
    settings: ProxySettings, store: Store, journal: JournalWriter, lock: IO[str]
) -> AsyncIterator[Callable[[], Status]]:
    """While the journal is taken into the database; how that goes. It begins with what an earlier process left."""
    if store.problem is not None:
        _log.error(store.problem)
        unread = Status(caught_up=True, problem=store.problem)
        yield lambda: unread
        return
    keep = settings.keep
    task = Task(str(settings.data), journal.tail.file, store.durable, keep.days, keep.gigabytes)
    process = IngestionProcess(task, lock.fileno())
    process.start()
    try:
        await asyncio.to_thread(process.wait)
        yield lambda: process.status
    finally:
        await asyncio.to_thread(process.stop)


async def _look_after_sessions(table: SessionTable, recorder: Recorder, journal: JournalWriter, idle: float) -> None:
    await recorder.try_again()
    table.close_idle(time.time(), idle)
    journal.leave_deleted()


async def _take_over_late(ingestion: Callable[[], Status], table: SessionTable, restore: Callable[[], None]) -> None:
    """Where the database was locked at the start: what an earlier process left open is known only later."""
    while not ingestion().caught_up:  # noqa: ASYNC110 - set by a thread
        await asyncio.sleep(_STEP_SECONDS)
    table.take_over()
    restore()


async def _look_after_versions(upstreams: Upstreams, policy: Policy, table: SessionTable, store: Store) -> None:
    await upstreams.check_all(policy.name)
    if store.problem is None:  # else nothing is known of versions, and what vLLM has loaded stays
        await policy.refresh(table)


async def _repeat(name: str, step: Callable[[], Awaitable[None]], seconds: float) -> None:
    """A loop of the proxy: a step that fails is logged and tried again; serving goes on meanwhile.

    One failure after another of the same words is logged once: a locked database would fill the log.
    """
    said: str | None = None
    while True:
        try:
            await step()
            said = None
        except Exception as error:  # noqa: BLE001 - the edge of a background loop
            if repr(error) != said:
                _log.exception("the loop that looks after %s failed; it goes on", name)
            said = repr(error)
        await asyncio.sleep(seconds)
