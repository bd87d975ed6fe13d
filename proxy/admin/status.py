"""`GET /admin/status`: one page of truth."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from proxy.admin.context import Context
from proxy.upstreams import Upstream
from storage import coordination, drifts, figures, groups, judging, repetition, runs, sessions, versions
from storage.states import VersionState
from storage.text import counted
from storage.types import BASE, version_name

_LAST_SESSIONS = 200
_FEW_SESSIONS = 20
_HIGH_SHARE = 0.5

NO_TRAINER = "the trainer does not run: start it with `slipstream trainer` or ./scripts/serve"


def status(context: Context) -> dict[str, Any]:
    db = context.db
    trainer = coordination.trainer(db)
    newest = runs.newest(db)
    return {
        "policy": context.settings.policy,
        "aliases": list(context.settings.alias),
        "upstreams": [_upstream(context, u) for u in context.upstreams.all],
        "live": version_name(context.settings.policy, context.policy.live()),
        "versions": _versions(context),
        "sessions": sessions.states(db),
        "unshared_scenarios": _unshared(context),
        "groups": groups.states(db),
        "judge": _judge(context),
        "last_run": asdict(newest) if newest else None,
        "paused": coordination.is_paused(db),
        "trainer": asdict(trainer) if trainer else None,
        "next_run": {
            "at": trainer.next_cycle_at if trainer else None,
            "waits_for": trainer.waits_for if trainer else NO_TRAINER,
        },
        "storage": asdict(figures.read(context.settings.data, db)),
        "degraded": degraded(context),
        "warnings": _warnings(context),
    }


def degraded(context: Context) -> list[str]:
    """What does not work at the moment, and what to do about it."""
    problems = [f"{u.url}: {u.problem}" for u in context.upstreams.all if u.problem]
    problems += [f"{u.url}: {u.lack}" for u in context.upstreams.all if u.lack]
    if not context.upstreams.all:
        problems.append("no vLLM server is configured: set SLIPSTREAM_UPSTREAM, or use ./scripts/serve")
    elif not serves_live(context) and not all(u.problem for u in context.upstreams.all):
        live = version_name(context.settings.policy, context.policy.live())
        problems.append(f"{live} is being loaded into vLLM: calls of new sessions wait for it, half a minute at most")
    ingestion = context.ingestion()
    problems += [p for p in (context.recorder.problem, ingestion.problem, context.policy.problem) if p]
    if context.draining():
        problems.append("the proxy is stopping: it takes no new connections")
    if context.recorder.lost:
        problems.append(f"{counted(context.recorder.lost, 'call')} could not be recorded whole since the proxy started")
    if ingestion.refused:
        problems.append(f"the database refused {counted(ingestion.refused, 'record')}: see journal/refused")
    trainer = coordination.trainer(context.db)
    if not trainer_alive(trainer):
        problems.append(NO_TRAINER)
    elif trainer and trainer.problem:
        problems.append(trainer.problem)
    return problems


def serves_live(context: Context) -> bool:
    """Whether a new session would be answered: some vLLM serves the live version."""
    live = context.policy.live()
    return any(u.problem is None and live in u.serves for u in context.upstreams.all)


def trainer_alive(trainer: coordination.TrainerState | None) -> bool:
    return trainer is not None and time.time() - trainer.heartbeat_at < coordination.STALE_SECONDS


def _upstream(context: Context, upstream: Upstream) -> dict[str, Any]:
    return {
        "url": upstream.url,
        "problem": upstream.problem,
        "plugin": upstream.plugin,
        "base_model": upstream.base,
        "root": upstream.root,
        "serves": sorted(version_name(context.settings.policy, v) for v in upstream.serves),
    }


def _judge(context: Context) -> dict[str, Any] | None:
    """Who judges, and what it cost; null: no trainer has run yet."""
    state = judging.state(context.db)
    if state is None:
        return None
    today = judging.spent(context.db, time.time())
    return {
        "model": state.model,
        "tokens_today": today,
        "tokens_total": judging.spent(context.db),
        "tokens_per_day": state.budget,
        "stopped": state.budget is not None and today >= state.budget,
    }


def _unshared(context: Context) -> dict[str, Any]:
    """Of the last sessions those whose scenario nobody shares; they cannot be compared with any other."""
    of, lonely = sessions.alone(context.db, _LAST_SESSIONS)
    return {"sessions": lonely, "of": of, "share": lonely / of if of else 0.0}


def _versions(context: Context) -> dict[str, list[str]]:
    by_state: dict[str, list[str]] = {}
    for version in versions.all_versions(context.db):
        by_state.setdefault(version.state, []).append(version_name(context.settings.policy, version.number))
    return by_state


def _warnings(context: Context) -> list[str]:
    warnings = context.ingestion().warnings
    ambiguous = sessions.count_skipped(context.db, sessions.AMBIGUOUS)
    if ambiguous:
        warnings.append(
            f"{counted(ambiguous, 'session')} skipped as ambiguous, for agents without tags were answered alike: "
            "tag their calls with X-Session-Id"
        )
    judge = judging.state(context.db)
    if judge is not None and judge.model is None:
        warnings.append(
            "no judge is configured: only groups whose sessions all have rewards of their own are scored; set "
            "SLIPSTREAM_JUDGE_BASE_URL and SLIPSTREAM_JUDGE_MODEL"
        )
    unshared = _unshared(context)
    if unshared["of"] >= _FEW_SESSIONS and unshared["share"] > _HIGH_SHARE:
        warnings.append(
            f"{unshared['sessions']} of the last {unshared['of']} sessions have a scenario that no other session has: "
            "nothing can be compared with them; tag the sessions of one task with one X-Scenario-Id"
        )
    warnings += [
        f"drift: {one.apart} of the last {one.sessions} sessions of scenario {one.scenario!r} fall apart into one "
        f"sequence per turn, for no prompt begins with what was sampled before it ({one.kind}): see `drift` in "
        "GET /admin/scenarios and GET /admin/sessions/<id>"
        for one in drifts.fallen_apart(context.db)
    ]
    warnings += _unexplored(context)
    for version in versions.all_versions(context.db):
        if version.state is VersionState.REJECTED and version.number > context.policy.live():
            name = version_name(context.settings.policy, version.number)
            warnings.append(f"{name} was trained and rejected, agents do not get it: {version.reason}")
    if context.policy.live() == BASE and context.upstreams.all and not versions.newest_number(context.db):
        warnings.append("no version has been trained yet: agents get the base model")
    return warnings


def _unexplored(context: Context) -> list[str]:
    """Scenarios whose sessions repeat each other, one warning for each cause."""
    found = repetition.repeated(context.db)
    causes = {
        True: 'they are sampled at temperature 0: set `[sampling] mode = "explore"`, or a temperature in the agent',
        False: "although they are sampled: the agent sets a seed, or there is nothing left to learn",
    }
    warnings = []
    for greedy, cause in causes.items():
        alike = [one for one in found if one.greedy is greedy]
        if alike:
            named = ", ".join(f"{one.scenario!r} ({one.distinct} different of {one.sessions})" for one in alike[:3])
            more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
            warnings.append(f"no exploration: the last sessions of {named}{more} repeat each other; {cause}")
    return warnings
