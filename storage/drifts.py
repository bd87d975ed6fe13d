"""Prompts that say an answer otherwise than it was sampled: what the trainer found, per session and per scenario."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from storage.database import Database
from storage.types import CallId, SessionKey

_RECENT = 256
"""Sessions that are looked at for a warning: the newest."""
_FEWEST_SESSIONS = 4


class Kind(StrEnum):
    """What became of the answer in the next prompt."""

    BOUNDARY = "whitespace or merge at the boundary"
    REASONING = "reasoning stripped"
    TOOL_CALL = "tool call re-serialised"
    REWRITTEN = "history rewritten"


@dataclass(frozen=True, slots=True)
class Drift:
    """Of one session."""

    continued: int
    """Calls whose messages go on from an answer of another call."""
    drifted: int
    """Those of them whose prompt does not begin with the tokens of that call and its answer."""
    call: CallId | None = None
    """The first of these, to which the rest belongs."""
    kind: Kind | None = None
    sampled: str | None = None
    """The text around the first difference, as it was: read and sampled."""
    prompted: str | None = None
    """The same place in the next prompt."""
    problem: str | None = None
    """Why there is no text."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A scenario most of whose last sessions fall apart into one sequence per turn."""

    owner: str
    scenario: str
    sessions: int
    apart: int
    """Of so many, as many."""
    kind: str
    """The most frequent one."""


def keep(db: Database, session: SessionKey, drift: Drift) -> None:
    """What a look at the session showed; it takes the place of an earlier look's."""
    with db.transaction():
        db.execute("DELETE FROM drifts WHERE session = ?", (session,))
        db.insert("drifts", session=session, **asdict(drift))


def row(db: Database, session: SessionKey) -> dict[str, Any] | None:
    """The session's drift as the admin API shows it; None before the trainer looked."""
    found = db.first(
        "SELECT continued, drifted, call, kind, sampled, prompted, problem FROM drifts WHERE session = ?", (session,)
    )
    return dict(found) if found else None


def fallen_apart(db: Database) -> list[Apart]:
    """Of the newest sessions of several turns. Costs the same however much is kept."""
    found = db.all(
        "SELECT owner, scenario, count(*) AS sessions, sum(drifted = continued) AS apart, group_concat(kind, ';')"
        " AS kinds FROM (SELECT * FROM drifts WHERE continued >= 2 ORDER BY session DESC LIMIT ?) JOIN sessions"
        " ON key = session WHERE scenario IS NOT NULL GROUP BY owner, scenario"
        " HAVING count(*) >= ? AND sum(drifted = continued) * 2 > count(*) ORDER BY apart DESC, owner, scenario",
        (_RECENT, _FEWEST_SESSIONS),
    )
    return [Apart(r["owner"], r["scenario"], r["sessions"], r["apart"], _most_frequent(r["kinds"])) for r in found]


def _most_frequent(kinds: str | None) -> str:
    if not kinds:
        return "of a kind that is not known"
    named = kinds.split(";")
    return max(sorted(set(named)), key=named.count)
