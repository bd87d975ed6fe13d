"""Scoring a group: by the clients' own rewards where every member has one, else by the judge."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from storage import exchanges, groups, judging, sessions
from storage.database import Database
from storage.states import GroupState, Outcome
from storage.text import dumps
from storage.types import Group, Member, RunId
from trainer import attempts, ruler
from trainer.advantages import advantages
from trainer.client_rewards import Named, of_members
from trainer.errors import JudgeRefused, JudgeSilent, JudgeUnreachable
from trainer.judge import Judge
from trainer.question import Attempt, Terms

_SEED_BITS = 53
"""What a reader of JSON that knows no integers but floats has exactly."""


def by_clients(db: Database, group: Group, min_spread: float, weights: Named) -> bool:
    """Give every member its client's reward (`of_members`); returns False where one of them has none."""
    given = of_members(db, [member.session for member in group.members], weights, min_spread)
    if given is None:
        return False
    members = [replace(m, reward=r, explanation=None) for m, r in zip(group.members, given, strict=True)]
    verdict = groups.Verdict(groups.WEIGHTED if weights else groups.CLIENTS)
    _keep(db, group, members, verdict, min_spread)
    return True


@dataclass(frozen=True, slots=True)
class Seen:
    """A group as the judge sees it."""

    terms: Terms
    attempts: tuple[Attempt, ...]
    """Of its members."""
    digests: tuple[str, ...]
    """Of the attempts: equal ones have the same."""
    key: str
    """As `groups.Verdict.key`."""


def seen(db: Database, group: Group, judge: Judge, terms: Terms) -> Seen:
    members = tuple(attempts.attempt(exchanges.of_session(db, member.session)) for member in group.members)
    digests = tuple(hashlib.sha256(one.content).hexdigest() for one in members)
    asked = dumps([judge.name, terms.instruction, terms.context, sorted(set(digests))])
    return Seen(terms, members, digests, hashlib.sha256(asked).hexdigest())


def as_before(db: Database, group: Group, judge: Judge, seen: Seen, min_spread: float) -> bool:
    """Give every member the score that the judge gave when it was asked the same; returns False where it was not."""
    before = judging.earlier(db, group.owner, seen.key, set(seen.digests))
    if before is None:
        return False
    scores = [before.scores[digest] for digest in seen.digests]
    verdict = groups.Verdict(judge.name, 0, before.seed, before.cut, seen.key)
    _keep(db, group, _scored(group, seen, scores), verdict, min_spread)
    return True


def by_judge(db: Database, group: Group, judge: Judge, seen: Seen, min_spread: float) -> None:
    """Give every member the judge's score; a group for which it cannot be had is skipped with the reason.

    Raises `JudgeUnreachable` or `JudgeSilent`: the group waits. What was spent is kept in any case.
    """
    seed = secrets.randbits(_SEED_BITS)
    before = judge.tokens
    try:
        scores = ruler.score(judge, seen.attempts, seen.terms, seed)
    except JudgeRefused as refused:
        skip(db, group, f"judge failed: {refused}", tokens=judge.tokens - before)
        return
    except (JudgeSilent, JudgeUnreachable):
        if judge.tokens > before:
            with db.transaction():
                judging.spend(db, group.id, judge.tokens - before, time.time())
        raise
    members = _scored(group, seen, [(one.value, one.explanation) for one in scores.scores])
    cut = asdict(scores.cut) if scores.cut else None
    verdict = groups.Verdict(judge.name, judge.tokens - before, seed, cut, seen.key)
    _keep(db, group, members, verdict, min_spread)


def _scored(group: Group, seen: Seen, scores: Sequence[tuple[float, str | None]]) -> list[Member]:
    return [
        replace(member, reward=value, explanation=explanation, attempt=digest)
        for member, digest, (value, explanation) in zip(group.members, seen.digests, scores, strict=True)
    ]


def skip(db: Database, group: Group, reason: str, run: RunId | None = None, tokens: int = 0) -> None:
    """The group is not trained, and neither are its sessions; ``run`` is the one that found the reason.

    ``tokens``: what the judge cost in vain.
    """
    now = time.time()
    with db.transaction():
        if tokens:
            judging.spend(db, group.id, tokens, now)
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
