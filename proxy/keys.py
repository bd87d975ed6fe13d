"""Who calls: client keys, known by their hashes, and the owner that each stands for."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import secrets
import threading

from proxy.asgi import Headers
from proxy.errors import CannotServe, PublicWithoutKeys, Unauthorized
from proxy.settings import ProxySettings
from storage import keys
from storage.database import Database, DatabaseError
from storage.errors import StorageError
from storage.types import DEFAULT_OWNER, Owner

_PREFIX = "slip-"
_NEEDED = (
    "no client key that Slipstream knows: send `Authorization: Bearer <key>` or `x-api-key: <key>`. "
    "An admin makes keys with POST /admin/keys"
)


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def is_same(given: bytes, known: bytes) -> bool:
    """Whether the key ``given`` is the one whose `digest` is ``known``; takes the same time, however near it is."""
    return hmac.compare_digest(digest(given), known)


class ClientKeys:
    """The client keys of the installation. While there is none, everyone is the owner `default`."""

    def __init__(self, db: Database, *, needed: bool) -> None:
        """``needed``: the last key cannot be removed."""
        self._needed = needed
        self._changes = threading.Lock()
        self._known = keys.all_keys(db)

    def owner(self, headers: Headers) -> Owner:
        """Who sent a request. Raises `Unauthorized` for one without a known key, once there are keys."""
        if not self._known:
            return DEFAULT_OWNER
        found: Owner | None = None
        for given in _given(headers):
            hashed = digest(given)
            for key in self._known:  # every one, so that the time tells nothing
                if hmac.compare_digest(hashed, key.hash) and found is None:
                    found = key.name
        if found is None:
            raise Unauthorized(_NEEDED)
        return found

    def add(self, db: Database, name: str) -> tuple[keys.Key, str]:
        """Make a key; returns it with its text, which is kept nowhere. Raises `Refused`."""
        with self._changes:
            made = make(db, name)
            self._known = keys.all_keys(db)
        return made

    def remove(self, db: Database, name: str) -> None:
        """Take a key back; its calls under way go on.

        Raises `NotFound`, and `Refused` for the last one where it is needed.
        """
        with self._changes:
            keys.remove(db, name, may_be_last=not self._needed)
            self._known = keys.all_keys(db)


def make(db: Database, name: str) -> tuple[keys.Key, str]:
    """A new key for the owner ``name``, and its text, which is kept nowhere. Raises `Refused`."""
    text = _PREFIX + secrets.token_urlsafe(32)
    return keys.add(db, name, digest(text.encode())), text


def is_public(host: str) -> bool:
    """Whether a proxy that listens at ``host`` can be reached from other machines."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def check_bind(settings: ProxySettings) -> None:
    """Raises `PublicWithoutKeys` when other machines could reach the proxy, and nobody would be asked for a key."""
    if not is_public(settings.host):
        return
    try:
        with contextlib.closing(Database(settings.data)) as db:
            known = keys.all_keys(db)
    except (StorageError, DatabaseError) as error:
        raise CannotServe(
            f"{error}. Without it the client keys are not known, and {settings.host} can be reached from other machines"
        ) from error
    if not known:
        raise PublicWithoutKeys(
            f"{settings.host} can be reached from other machines, and there is no client key: whoever finds the "
            "port could use the model and steer its training. Make a key with `.venv/bin/slipstream keys add NAME` "
            "and give it to the agents as their API key, or listen at 127.0.0.1 (SLIPSTREAM_HOST)"
        )


def _given(headers: Headers) -> list[bytes]:
    """The keys in a request's headers."""
    found = []
    for name, value in headers:
        if name == b"x-api-key":
            found.append(value.strip())
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            found.append(value[7:].strip())
    return found
