"""Versions of the policy, and where each is loaded and probed."""

from __future__ import annotations

from typing import Any

import orjson

from storage.database import Database, Row
from storage.errors import NotFound
from storage.states import VERSION_MOVES, VersionState, check_move
from storage.types import BASE, Run, RunId, Version, VersionNumber

_TIMES = {VersionState.VERIFIED: "verified_at", VersionState.LIVE: "live_at"}


def ensure_base(db: Database, at: float) -> None:
    """`@0`, the base model, serves from the first start on."""
    if not db.first("SELECT 1 FROM versions WHERE number = 0"):
        db.insert("versions", number=BASE, state=VersionState.LIVE, created_at=at, live_at=at)


def add(db: Database, run: Run, path: str, digest: str, at: float) -> Version:
    """A run produced a version: it is `trained`."""
    assert run.version is not None
    db.insert(
        "versions",
        number=run.version,
        run=run.id,
        parent=run.parent,
        state=VersionState.TRAINED,
        path=path,
        digest=digest,
        created_at=at,
    )
    return get(db, run.version)


def get(db: Database, number: VersionNumber) -> Version:
    row = db.first("SELECT * FROM versions WHERE number = ?", (number,))
    if row is None:
        raise NotFound(f"there is no version {number}")
    return _version(row)


def all_versions(db: Database) -> list[Version]:
    return [_version(row) for row in db.all("SELECT * FROM versions ORDER BY number")]


def newest_number(db: Database) -> VersionNumber:
    return VersionNumber(db.number("SELECT max(number) FROM versions"))


def live(db: Database) -> Version:
    """The version that answers new sessions."""
    row = db.first("SELECT * FROM versions WHERE state = ?", (VersionState.LIVE,))
    if row is None:
        raise NotFound("no version is live")
    return _version(row)


def move(db: Database, number: VersionNumber, state: VersionState, reason: str | None, at: float) -> None:
    """Bring a version into its next state. Inside a transaction where several move together."""
    check_move(VERSION_MOVES, get(db, number).state, state, f"version {number}")
    db.execute("UPDATE versions SET state = ?, reason = ? WHERE number = ?", (state, reason, number))
    if state in _TIMES:
        db.execute(f"UPDATE versions SET {_TIMES[state]} = ? WHERE number = ?", (at, number))


def set_probe(db: Database, number: VersionNumber, probe: dict[str, Any]) -> None:
    db.execute("UPDATE versions SET probe = ? WHERE number = ?", (orjson.dumps(probe).decode(), number))


def set_loading(db: Database, number: VersionNumber, upstream: str, at: float, verdict: str | None) -> None:
    """A replica has the version loaded (``verdict`` None), or was probed with that verdict."""
    db.execute(
        "INSERT INTO loadings (version, upstream, loaded_at, probed_at, verdict) VALUES (?1, ?2, ?3, ?4, ?5)"
        " ON CONFLICT DO UPDATE SET loaded_at = ?3, probed_at = ?4, verdict = ?5",
        (number, upstream, at, at if verdict else None, verdict),
    )


def loadings(db: Database) -> list[dict[str, Any]]:
    return [dict(row) for row in db.all("SELECT * FROM loadings ORDER BY version, upstream")]


def _version(row: Row) -> Version:
    return Version(
        number=VersionNumber(row["number"]),
        run=RunId(row["run"]) if row["run"] else None,
        parent=VersionNumber(row["parent"]) if row["parent"] is not None else None,
        state=VersionState(row["state"]),
        reason=row["reason"],
        path=row["path"],
        digest=row["digest"],
        created_at=row["created_at"],
        verified_at=row["verified_at"],
        live_at=row["live_at"],
        probe=orjson.loads(row["probe"]),
    )
