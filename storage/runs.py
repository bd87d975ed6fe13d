"""Runs: asked for by the proxy (`run_requests`), carried out by the trainer (`runs`), one row each."""

from __future__ import annotations

from typing import Any

import orjson

from storage.database import Database, Row
from storage.errors import NotFound
from storage.states import ENDED_RUNS, RUN_MOVES, RunState, check_move
from storage.types import BASE, Run, RunId, RunRequest, VersionNumber


def request(db: Database, asked: RunRequest) -> None:
    """The proxy's part: ask for a run; its id becomes the run's."""
    db.insert(
        "run_requests",
        id=asked.id,
        scenario=asked.scenario,
        settings=orjson.dumps(asked.settings).decode(),
        requested_at=asked.requested_at,
    )


def requests(db: Database) -> list[RunRequest]:
    """Requests that no run has been made of, oldest first."""
    rows = db.all("SELECT * FROM run_requests WHERE id NOT IN (SELECT id FROM runs) ORDER BY requested_at, id")
    return [RunRequest(RunId(r["id"]), r["scenario"], orjson.loads(r["settings"]), r["requested_at"]) for r in rows]


def create(db: Database, asked: RunRequest) -> Run:
    """The trainer's part: a run of a request, in state `requested`."""
    db.insert(
        "runs",
        id=asked.id,
        kind="train",
        state=RunState.REQUESTED,
        scenario=asked.scenario,
        requested_at=asked.requested_at,
        settings=orjson.dumps(asked.settings).decode(),
        metrics="{}",
    )
    return get(db, asked.id)


def reserve_version(
    db: Database, run: RunId, parent: VersionNumber, settings: dict[str, Any], at: float
) -> VersionNumber:
    """Start a run: it gets its version number, which is never given again. Inside a transaction."""
    highest = db.number("SELECT max(version) FROM runs")
    version = VersionNumber(highest + 1)
    _move(db, run, RunState.RUNNING, None)
    db.execute(
        "UPDATE runs SET version = ?, parent = ?, started_at = ?, settings = ? WHERE id = ?",
        (version, parent, at, orjson.dumps(settings).decode(), run),
    )
    return version


def end(db: Database, run: RunId, state: RunState, reason: str | None, metrics: dict[str, Any], at: float) -> None:
    """A run ended, with its metrics or its reason. Inside a transaction."""
    _move(db, run, state, reason)
    db.execute("UPDATE runs SET metrics = ?, ended_at = ? WHERE id = ?", (orjson.dumps(metrics).decode(), at, run))


def _move(db: Database, run: RunId, state: RunState, reason: str | None) -> None:
    check_move(RUN_MOVES, get(db, run).state, state, f"run {run}")
    db.execute("UPDATE runs SET state = ?, reason = ? WHERE id = ?", (state, reason, run))


def get(db: Database, run: RunId) -> Run:
    """The run, or the request that it will be made of."""
    row = db.first("SELECT * FROM runs WHERE id = ?", (run,))
    if row is not None:
        return _run(row)
    asked = db.first("SELECT * FROM run_requests WHERE id = ?", (run,))
    if asked is None:
        raise NotFound(f"there is no run {run}")
    return _requested(asked)


def in_state(db: Database, state: RunState) -> list[Run]:
    return [_run(row) for row in db.all("SELECT * FROM runs WHERE state = ? ORDER BY requested_at", (state,))]


def first(db: Database) -> RunId:
    """The oldest run on record, whatever became of it. There is one."""
    row = db.first("SELECT id FROM runs ORDER BY requested_at, id LIMIT 1")
    assert row is not None
    return RunId(row["id"])


def newest(db: Database) -> Run | None:
    """The run that ended last."""
    row = db.first("SELECT * FROM runs WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT 1")
    return _run(row) if row else None


def succeeded_after(db: Database, version: VersionNumber) -> list[Run]:
    """Runs that produced a version above ``version``, in the order of their numbers."""
    rows = db.all("SELECT * FROM runs WHERE state = ? AND version > ? ORDER BY version", (RunState.SUCCEEDED, version))
    return [_run(row) for row in rows]


def newest_version(db: Database, below: VersionNumber | None = None) -> VersionNumber:
    """The newest version that is not rejected: the parent of the next run. ``below``: the newest one below that."""
    row = db.first(
        "SELECT max(version) AS newest FROM runs WHERE state = ?1 AND (?2 IS NULL OR version < ?2)"
        " AND version NOT IN (SELECT number FROM versions WHERE state = 'rejected')",
        (RunState.SUCCEEDED, below),
    )
    return VersionNumber(row["newest"]) if row and row["newest"] is not None else BASE


def steps_behind(db: Database, version: VersionNumber) -> int:
    """How many updates lie between ``version`` and the newest, along the chain of parents.

    A version that is not on that chain (it was rejected) counts as far as the place where it left the chain; one
    that is not known, as far as the base model.
    """
    chain = [newest_version(db)]
    parents = {row["version"]: row["parent"] for row in db.all("SELECT version, parent FROM runs WHERE version > 0")}
    while chain[-1] != BASE:
        chain.append(VersionNumber(parents[chain[-1]] or BASE))
    while version not in chain:
        version = VersionNumber(parents.get(version) or BASE)
    return chain.index(version)


def rows(db: Database, limit: int, cursor: str | None) -> list[Run]:
    """Runs, and requests that wait, newest first, for the admin API."""
    found = db.all(
        "SELECT id FROM (SELECT id FROM runs UNION SELECT id FROM run_requests) WHERE id < coalesce(?, 'z')"
        " ORDER BY id DESC LIMIT ?",
        (cursor, limit),
    )
    return [get(db, RunId(row["id"])) for row in found]


def is_ended(run: Run) -> bool:
    return run.state in ENDED_RUNS


def _run(row: Row) -> Run:
    return Run(
        id=RunId(row["id"]),
        kind=row["kind"],
        state=RunState(row["state"]),
        reason=row["reason"],
        scenario=row["scenario"],
        requested_at=row["requested_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        parent=VersionNumber(row["parent"]) if row["parent"] is not None else None,
        version=VersionNumber(row["version"]) if row["version"] is not None else None,
        settings=orjson.loads(row["settings"]),
        metrics=orjson.loads(row["metrics"]),
    )


def _requested(row: Row) -> Run:
    return Run(
        id=RunId(row["id"]),
        kind="train",
        state=RunState.REQUESTED,
        reason=None,
        scenario=row["scenario"],
        requested_at=row["requested_at"],
        started_at=None,
        ended_at=None,
        parent=None,
        version=None,
        settings=orjson.loads(row["settings"]),
    )
