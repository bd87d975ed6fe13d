"""Client keys. A key's name is the owner of everything that is done with it; the key itself is never stored."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from storage.database import Database
from storage.errors import NotFound, Refused
from storage.types import Owner

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Key:
    name: Owner
    hash: bytes
    """SHA-256 of the key: it is 256 bits of chance, so that nothing slower protects it better."""
    created_at: float


def is_key_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def add(db: Database, name: str, digest: bytes) -> Key:
    """Keep a key. Raises `Refused` where there is one of that name, or the name cannot be used."""
    if not is_key_name(name):
        raise Refused(f"{name!r} cannot name a key: 1 to 64 letters, digits, dots, dashes, underscores")
    key = Key(Owner(name), digest, time.time())
    with db.transaction():
        if db.first("SELECT 1 FROM keys WHERE name = ?", (name,)):
            raise Refused(
                f"there is a key named {name} already: take another name, or remove that one first "
                f"(DELETE /admin/keys/{name} while the proxy runs)"
            )
        db.insert("keys", name=key.name, hash=key.hash, created_at=key.created_at)
    return key


def remove(db: Database, name: str, *, may_be_last: bool) -> None:
    """Forget a key. Raises `NotFound`, and `Refused` for the last one where it must not go."""
    with db.transaction():
        if not db.execute("DELETE FROM keys WHERE name = ?", (name,)):
            raise NotFound(f"there is no key named {name}")
        if not may_be_last and not db.number("SELECT count(*) FROM keys"):
            raise Refused(
                f"{name} is the last key, and the proxy listens beyond this machine: without any key it would serve "
                "everybody. Make another key first, or bind it to 127.0.0.1"
            )


def all_keys(db: Database) -> list[Key]:
    """Every key, by name."""
    rows = db.all("SELECT * FROM keys ORDER BY name")
    return [Key(Owner(row["name"]), row["hash"], row["created_at"]) for row in rows]
