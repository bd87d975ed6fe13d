"""Scoring a group: by the clients' own rewards where every member has one, else by the judge."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, replace

from storage import exchanges, groups, sessions
from storage.database import Database
from storage.states import GroupState, Outcome
from storage.types import Group, Member, RunId, SessionKey
from trainer import attempts, ruler
from trainer.advantages import advantages
from trainer.client_rewards import Named, of_members
from trainer.errors import JudgeRefused
from trainer.judge import Judge
from trainer.question import Attempt, Terms

CLIENTS = "the clients' own rewards"
_SEED_BITS = 53
"""What a reader of JSON that knows no integers but floats has exactly."""


def by_clients(db: Database, group: Group, min_spread: float, weights: Named) -> bool:
    """Give every member its client's reward (`of_members`); returns False where one of them has none."""
    given = of_members(db, [member.session for member in group.members], weights, min_spread)
    if given is None:
        return False
    members = [replace(m, reward=r, explanation=None) for m, r in zip(group.members, given, strict=True)]
    _keep(db, group, members, groups.Verdict(CLIENTS), min_spread)
    return True


def by_judge(db: Database, group: Group, judge: Judge, terms: Terms, min_spread: float) -> None:
    """Give every member the judge's score; a group for which it cannot be had is skipped with the reason.

    Raises `JudgeUnreachable` or `JudgeSilent`: the group waits.
    """
    try:
        seen = [attempt(db, member.session) for member in group.members]
        seed = secrets.randbits(_SEED_BITS)
        scores = ruler.score(judge, seen, terms, seed)
    except JudgeRefused as refused:
        skip(db, group, f"judge failed: {refused}")
        return
    members = [
        replace(m, reward=s.value, explanation=s.explanation) for m, s in zip(group.members, scores.scores, strict=True)
    ]
    cut = asdict(scores.cut) if scores.cut else None
    _keep(db, group, members, groups.Verdict(judge.name, scores.tokens, seed, cut), min_spread)


def skip(db: Database, group: Group, reason: str, run: RunId | None = None) -> None:
    """The group is not trained, and neither are its sessions; ``run`` is the one that found the reason."""
    now = time.time()
    with db.transaction():
        groups.move(db, group, GroupState.SKIPPED, reason, run)
        for member in groups.free_members(db, group):
            sessions.set_outcome(db, member.session, Outcome.SKIPPED, reason, run, now)


def _keep(db: Database, group: Group, members: list[Member], verdict: groups.Verdict, min_spread: float) -> None:
    now = time.time()
    values = [member.reward for member in members if member.reward is not None]
    spread = max(values) - min(values)
    with db.transaction():
        groups.set_scores(db, group, members, verdict, now)
        if group.split == "eval":
            groups.move(db, group, GroupState.EVAL)
            outcome, reason = Outcome.EVALUATED, None
        elif spread < min_spread or advantages(values) is None:
            reason = f"no variance: best and worst reward differ by {spread:.3g}"
            groups.move(db, group, GroupState.SKIPPED, reason)
            outcome = Outcome.SKIPPED
        else:
            return
        for member in members:
            sessions.set_outcome(db, member.session, outcome, reason, None, now)


def attempt(db: Database, session: SessionKey) -> Attempt:
    """What the judge sees of a session."""
    return attempts.attempt(exchanges.of_session(db, session))
