"""The judge as the database knows it: who it is, what it costs, and what it said of the same attempts before."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass

import orjson

from storage.database import Database
from storage.types import GroupId, Owner

_EARLIER = 3
"""How many groups of the same key are looked at: of an older one members may have been deleted."""


@dataclass(frozen=True, slots=True)
class JudgeState:
    """What the trainer was started with."""

    model: str | None
    """None: no judge is configured."""
    budget: int | None
    """Tokens a day; None: without limit."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the judge said when it was asked the same."""

    seed: int | None
    cut: dict[str, int] | None
    scores: dict[str, tuple[float, str | None]]
    """Reward and explanation of each attempt, by its digest."""


def describe(db: Database, model: str | None, budget: int | None) -> None:
    """The trainer's part, at its start."""
    db.execute(
        "INSERT INTO judge_state VALUES (1, ?1, ?2) ON CONFLICT (id) DO UPDATE SET model = ?1, budget = ?2",
        (model, budget),
    )


def state(db: Database) -> JudgeState | None:
    """None: no trainer has run yet."""
    row = db.first("SELECT * FROM judge_state")
    return JudgeState(row["model"], row["budget"]) if row is not None else None


def spend(db: Database, group: GroupId, tokens: int, at: float) -> None:
    """Count tokens that a group cost, whatever came of it. Inside a transaction."""
    db.execute("UPDATE groups SET judge_tokens = judge_tokens + ? WHERE id = ?", (tokens, group))
    db.execute(
        "INSERT INTO judge_spending VALUES (?1, ?2) ON CONFLICT (day) DO UPDATE SET tokens = tokens + ?2",
        (day(at), tokens),
    )


def spent(db: Database, at: float | None = None) -> int:
    """Tokens of the day (UTC) of ``at``, or of all days; those of groups that were deleted are among them."""
    if at is None:
        return db.number("SELECT sum(tokens) FROM judge_spending")
    return db.number("SELECT sum(tokens) FROM judge_spending WHERE day = ?", (day(at),))


def day(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat()


def silent(db: Database, group: GroupId, silences: int, due: float) -> None:
    """The judge gave no answer: it is asked again, not before ``due``."""
    db.execute("UPDATE groups SET judge_silences = ?, judge_due = ? WHERE id = ?", (silences, due, group))


def earlier(db: Database, owner: Owner, key: str, attempts: Collection[str]) -> Earlier | None:
    """What the judge said in a group of the same owner with this ``key``, in which it scored all ``attempts``."""
    for group in db.all(
        "SELECT id, judge_seed, judge_cut FROM groups WHERE judge_key = ? AND owner = ?"
        " ORDER BY scored_at DESC LIMIT ?",
        (key, owner, _EARLIER),
    ):
        rows = db.all('SELECT attempt, reward, explanation FROM group_members WHERE "group" = ?', (group["id"],))
        scores = {row["attempt"]: (row["reward"], row["explanation"]) for row in rows}
        if set(attempts) <= set(scores):
            return Earlier(group["judge_seed"], read_cut(group["judge_cut"]), scores)
    return None


def read_cut(text: str | None) -> dict[str, int] | None:
    return None if text is None else orjson.loads(text)
