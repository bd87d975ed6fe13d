"""Client keys in the admin API. A key's text is shown once, when it is made."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path
from pydantic import BaseModel, ConfigDict, Field

from proxy.admin.context import REFUSALS, Here, Limit, Problem, page, require_admin
from storage import keys
from storage.errors import NotFound, Refused

keys_router = APIRouter(prefix="/admin/keys", dependencies=[Depends(require_admin)], responses=REFUSALS)

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class KeyBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=_NAME)
    """The owner of everything that is done with the key."""


@keys_router.get("")
def list_keys(context: Here, limit: Limit = 100, cursor: str | None = None) -> dict[str, Any]:
    """Client keys by name. While there is none, everyone is served, as the owner `default`."""
    known = [key for key in keys.all_keys(context.db) if cursor is None or key.name > cursor]
    return page([{"name": key.name, "created_at": key.created_at} for key in known[:limit]], limit, "name")


@keys_router.post("", status_code=201, responses={409: {"model": Problem}})
def make_key(context: Here, body: KeyBody) -> dict[str, Any]:
    """Make a key for an agent, or for a group of them. It is shown this once: only its hash is kept.

    From the first key on, every call needs one.
    """
    try:
        key, text = context.keys.add(context.db, body.name)
    except Refused as error:
        raise HTTPException(409, str(error)) from error
    return {"name": key.name, "key": text, "created_at": key.created_at}


@keys_router.delete("/{name}", responses={404: {"model": Problem}, 409: {"model": Problem}})
def remove_key(context: Here, name: Annotated[str, Path(pattern=_NAME)]) -> dict[str, str]:
    """Take a key back. Its calls under way go on, and its sessions stay."""
    try:
        context.keys.remove(context.db, name)
    except NotFound as error:
        raise HTTPException(404, str(error)) from error
    except Refused as error:
        raise HTTPException(409, str(error)) from error
    return {"removed": name}
