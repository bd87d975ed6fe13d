"""The routes of the admin API, and the two open ones beside it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from proxy.admin.context import REFUSALS, Here, Limit, Problem, page, require_admin
from proxy.admin.status import NO_TRAINER, degraded, serves_live, status, trainer_alive
from proxy.client_api import NOT_RECORDED, RewardBody, keep_reward
from proxy.errors import NotServing, ProxyError
from proxy.versions import as_dict
from storage import calls, coordination, drifts, groups, rewards, runs, scenarios, sessions, versions
from storage.errors import NotFound
from storage.states import GroupState, RunState, SessionState, VersionState
from storage.types import DEFAULT_OWNER, GroupId, Identity, Owner, Run, RunId, RunRequest, Session, new_id
from storage.update_settings import UpdateSettings

open_router = APIRouter()
admin_router = APIRouter(prefix="/admin", dependencies=[Depends(require_admin)], responses=REFUSALS)

_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Problem}}
_UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: {"model": Problem}}

Number = Annotated[int, Query(ge=0, lt=2**63)]

_POLL_SECONDS = 0.2


@open_router.get("/health")
def health() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@open_router.get("/ready", responses={503: {"description": "It cannot; `problems` says why"}})
def ready(context: Here) -> JSONResponse:
    """Whether the proxy can serve and record."""
    able = serves_live(context) and not context.draining()
    recording = context.recorder.problem
    body: dict[str, Any] = {"ready": able and recording is None, "serves": able, "records": recording is None}
    body["reachable"] = any(u.problem is None for u in context.upstreams.all)
    if not body["ready"]:
        body["problems"] = degraded(context)
    elif (problem := context.ingestion().problem) is not None:  # nothing is lost by it yet
        body["problems"] = [problem]
    return JSONResponse(body, 200 if body["ready"] else 503)


@admin_router.get("/status")
def get_status(context: Here) -> dict[str, Any]:
    """One page of truth: who serves, what was recorded, what happens next, what is wrong."""
    return status(context)


@admin_router.get("/sessions")
def list_sessions(
    context: Here,
    owner: str | None = None,
    scenario: str | None = None,
    state: SessionState | None = None,
    version: Number | None = None,
    limit: Limit = 100,
    cursor: Number | None = None,
) -> dict[str, Any]:
    """Sessions, newest first, with what became of each."""
    where = {"owner": owner, "scenario": scenario, "state": state, "version": version}
    found = sessions.rows(context.db, {k: v for k, v in where.items() if v is not None}, limit, cursor)
    return page(found, limit, "key")


@admin_router.get("/sessions/{session_id:path}", responses=_NOT_FOUND)
def get_session(
    context: Here, session_id: str, episode: Number | None = None, owner: str = DEFAULT_OWNER
) -> dict[str, Any]:
    """One session with its calls, rewards, group, and what drifted in it (null: the trainer has not looked yet)."""
    session = _session(context, Identity(Owner(owner), session_id), episode)
    rows = sessions.rows(context.db, {"key": session.key}, 1, None)
    return {
        **rows[0],
        "calls": calls.rows(context.db, session.key),
        "rewards": rewards.rows(context.db, session.key),
        "drift": drifts.row(context.db, session.key),
    }


@admin_router.post("/sessions/{session_id:path}/reward", responses=_NOT_FOUND | _UNAVAILABLE)
def reward_session(
    context: Here, session_id: str, body: RewardBody, episode: Number | None = None, owner: str = DEFAULT_OWNER
) -> dict[str, Any]:
    """Give a session a reward; an earlier one of the same name stays, and no longer counts."""
    identity = Identity(Owner(owner), session_id)
    _session(context, identity, episode)
    try:
        kept = keep_reward(context.recorder, identity, episode, "admin", body)
        anyio.from_thread.run(context.recorder.settle)
        if context.recorder.problem is not None:
            raise NotServing(NOT_RECORDED)
        return kept
    except ProxyError as error:
        raise HTTPException(error.status, str(error)) from error


@admin_router.get("/scenarios")
def list_scenarios(
    context: Here,
    owner: str | None = None,
    scenario: str | None = None,
    limit: Limit = 100,
    cursor: Number | None = None,
) -> dict[str, Any]:
    """Scenarios of the newest 10,000 sessions, the last attempted first: what became of their sessions and groups, how
    many prompts say an answer otherwise than it was sampled, and the progress along the versions (newest 1,000 groups).

    `progress` has a list for each source of rewards (`ruler`, `client`, `client, weighted`), which are never mixed. Of
    each version: its `effect` is its reward minus that of `reference` in the same groups, by least squares over all of
    them, with its `standard_error`; `reason` says where no chain of groups leads to the oldest version. `mean` is given
    for plain client rewards alone: other scores say nothing outside of their group."""
    where = {"owner": owner, "scenario": scenario}
    found = scenarios.rows(context.db, {k: v for k, v in where.items() if v is not None}, limit, cursor)
    return page(found, limit, "newest")


@admin_router.get("/groups")
def list_groups(
    context: Here,
    owner: str | None = None,
    scenario: str | None = None,
    state: GroupState | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Groups, newest first."""
    where = {"owner": owner, "scenario": scenario, "state": state}
    found = groups.rows(context.db, {k: v for k, v in where.items() if v is not None}, limit, cursor)
    return page(found, limit, "id")


@admin_router.get("/groups/{group_id}", responses=_NOT_FOUND)
def get_group(context: Here, group_id: str) -> dict[str, Any]:
    """One group: its members with scores and explanations, its judge, the tokens spent."""
    try:
        group = groups.get(context.db, GroupId(group_id))
    except NotFound as error:
        raise HTTPException(404, str(error)) from error
    return {**asdict(group), "members": groups.member_rows(context.db, group.id)}


@admin_router.get("/runs")
def list_runs(context: Here, limit: Limit = 100, cursor: str | None = None) -> dict[str, Any]:
    """Runs, newest first; `requested` ones wait for the trainer."""
    return page([asdict(run) for run in runs.rows(context.db, limit, cursor)], limit, "id")


@admin_router.get("/runs/{run_id}", responses=_NOT_FOUND)
def get_run(context: Here, run_id: str) -> dict[str, Any]:
    """One run: settings, metrics, the groups that it took or skipped with reason and spread of rewards, and what became
    of their sessions."""
    try:
        run = runs.get(context.db, RunId(run_id))
    except NotFound as error:
        raise HTTPException(404, str(error)) from error
    return {
        **asdict(run),
        "groups": groups.rows_of_run(context.db, run.id),
        "skipped_sessions": sessions.skipped_by_run(context.db, run.id),
    }


@admin_router.get("/versions")
def list_versions(context: Here, limit: Limit = 100, cursor: Number | None = None) -> dict[str, Any]:
    """Versions with their states, newest first, and where each is loaded."""
    below = [v for v in reversed(versions.all_versions(context.db)) if cursor is None or v.number < cursor]
    found = [as_dict(v, context.settings.policy) for v in below[:limit]]
    shown = {v["number"] for v in found}
    loadings = [row for row in versions.loadings(context.db) if row["version"] in shown]
    return {**page(found, limit, "number"), "loadings": loadings}


_TRAIN: dict[int | str, dict[str, Any]] = {
    **_UNAVAILABLE,
    200: {"description": "With `wait`: the run, ended"},
}


class TrainBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scenario: str | None = None
    settings: UpdateSettings = UpdateSettings()
    """For this run alone; what is not given is as the trainer's settings say (`[train]`)."""
    wait: bool = False
    """Answer when the run has ended, and its version answers new sessions."""


@admin_router.post("/train", status_code=202, responses=_TRAIN)
async def train(context: Here, client: Request, body: TrainBody | None = None) -> JSONResponse:
    """Ask for a run now, with the groups that there are. Without a body: of all scenarios, with the usual settings.

    A client that waits and leaves takes nothing back: the run goes on.
    """
    body = body or TrainBody()
    trainer = await anyio.to_thread.run_sync(lambda: coordination.trainer(context.db))
    if not trainer_alive(trainer):
        raise HTTPException(503, NO_TRAINER)
    asked = RunRequest(RunId(new_id()), body.scenario, body.settings.model_dump(exclude_unset=True), time.time())
    await anyio.to_thread.run_sync(lambda: runs.request(context.db, asked))
    accepted = JSONResponse({"id": asked.id, "state": RunState.REQUESTED}, 202)
    if not body.wait:
        return accepted
    while not await client.is_disconnected():
        await anyio.sleep(_POLL_SECONDS)
        run, settled = await anyio.to_thread.run_sync(lambda: _settled(context, asked.id))
        if settled:
            return JSONResponse(asdict(run), 200)
        if not trainer_alive(await anyio.to_thread.run_sync(lambda: coordination.trainer(context.db))):
            raise HTTPException(503, f"run {asked.id} waits: {NO_TRAINER}")
    return accepted


def _settled(context: Here, run_id: RunId) -> tuple[Run, bool]:
    """The run, and whether nothing more will come of it: ended, and its version live or past that."""
    run = runs.get(context.db, run_id)
    if run.state is not RunState.SUCCEEDED:
        return run, runs.is_ended(run)
    assert run.version is not None
    try:
        state = versions.get(context.db, run.version).state
    except NotFound:
        return run, False
    return run, state not in (VersionState.TRAINED, VersionState.VERIFIED)


@admin_router.post("/pause")
def pause(context: Here) -> dict[str, bool]:
    """Stop the scheduler: no group is formed and nothing trained, unless a run is asked for. Serving goes on."""
    coordination.set_paused(context.db, True)
    return {"paused": True}


@admin_router.post("/resume")
def resume(context: Here) -> dict[str, bool]:
    coordination.set_paused(context.db, False)
    return {"paused": False}


def _session(context: Here, identity: Identity, episode: int | None) -> Session:
    found = sessions.find(context.db, identity, episode)
    if found is None:
        which = f", episode {episode}" if episode else ""
        raise HTTPException(404, f"there is no session {identity.session_id}{which}")
    return found
