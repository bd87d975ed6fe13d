"""What the admin routes work with, and who may use them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from proxy.keys import ClientKeys, is_same
from proxy.recorder import Recorder
from proxy.sessions import SessionTable
from proxy.settings import ProxySettings
from proxy.store import Store
from proxy.upstreams import Upstreams
from proxy.versions import Policy
from storage.database import Database
from storage.ingest import Status


@dataclass(frozen=True, slots=True)
class Context:
    settings: ProxySettings
    store: Store
    admin_key: bytes
    """Its hash."""
    keys: ClientKeys
    upstreams: Upstreams
    policy: Policy
    table: SessionTable
    recorder: Recorder
    ingestion: Callable[[], Status]
    draining: Callable[[], bool]
    """Whether the process is stopping."""
    _local: threading.local = field(default_factory=threading.local)

    @property
    def db(self) -> Database:
        """The database connection of this thread."""
        if not hasattr(self._local, "db"):
            self._local.db = self.store.connect()
        db: Database = self._local.db
        return db


def get_context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Here = Annotated[Context, Depends(get_context)]

Limit = Annotated[int, Query(ge=1, le=1000)]


class Problem(BaseModel):
    """An error of the admin API."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The body is no JSON, or cannot be kept"},
    401: {"model": Problem, "description": "The admin key is missing or wrong"},
    503: {"model": Problem, "description": "The database cannot be used"},
}
"""What every admin route may answer."""


def page(items: list[dict[str, Any]], limit: int, key: str) -> dict[str, Any]:
    """A page of a list; ``cursor`` asks for the next one."""
    return {"items": items, "cursor": items[-1][key] if len(items) == limit else None}


_bearer = HTTPBearer(auto_error=False, description="The admin key: `admin.key` in the data folder.")


_STATUS = "/admin/status"


def require_admin(
    context: Here, request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    given = credentials.credentials if credentials else ""
    if not is_same(given.encode("latin-1", "replace"), context.admin_key):
        raise HTTPException(
            401,
            "wrong or missing admin key: send `Authorization: Bearer <key>`; the key is in "
            "SLIPSTREAM_ADMIN_KEY or in admin.key in the data folder",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if context.store.problem is not None and request.url.path != _STATUS:
        raise HTTPException(503, context.store.problem)
