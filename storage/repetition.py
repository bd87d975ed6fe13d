"""Scenarios whose sessions repeat each other, token by token: nothing can be learned from comparing them."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from storage.database import Database
from storage.states import SessionState

_RECENT = 256
"""Sessions that are looked at: the last that closed."""
_OF_A_SCENARIO = 16
_FEWEST = 4
"""Sessions of a scenario that say something."""
_CALLS = 8
"""Calls of each: sessions that are alike so long are alike."""


@dataclass(slots=True)
class Repetition:
    """A scenario whose last sessions are (nearly) all the same."""

    owner: str
    scenario: str
    sessions: int
    distinct: int
    """Of so many, as many are different from each other."""
    greedy: bool
    """Sampled at temperature 0, all of them."""


@dataclass(slots=True)
class _Seen:
    digests: list[bytes] = field(default_factory=list)
    greedy: bool = True


def repeated(db: Database) -> list[Repetition]:
    """The scenarios that repeat themselves, of those that were attempted last. Costs the same however much is kept.

    At temperature 0 most sessions have a twin; rounding makes some differ. Sampled sessions with short answers may well
    have one, and learn: of them no more than a quarter are different.
    """
    seen: defaultdict[tuple[str, str], _Seen] = defaultdict(_Seen)
    rows = db.all(
        "SELECT key, owner, scenario FROM sessions WHERE state = ? AND split = 'train' AND scenario IS NOT NULL"
        " ORDER BY key DESC LIMIT ?",
        (SessionState.CLOSED, _RECENT),
    )
    for row in rows:
        of_scenario = seen[row["owner"], row["scenario"]]
        if len(of_scenario.digests) < _OF_A_SCENARIO:
            _look(db, row["key"], of_scenario)
    found = []
    for (owner, scenario), of_scenario in seen.items():
        counted = Counter(of_scenario.digests)
        sessions, distinct = counted.total(), len(counted)
        twins = sum(n for n in counted.values() if n > 1)
        alike = twins * 2 > sessions if of_scenario.greedy else distinct * 4 <= sessions
        if sessions >= _FEWEST and alike:
            found.append(Repetition(owner, scenario, sessions, distinct, of_scenario.greedy))
    return found


def _look(db: Database, session: int, seen: _Seen) -> None:
    """Add what a session sampled, if it did."""
    digest = hashlib.sha256()
    sampled = False
    for row in db.all(
        "SELECT ids, json_extract(sampling, '$.temperature') AS temperature FROM"
        " (SELECT seq, sampling FROM calls WHERE session = ? ORDER BY seq LIMIT ?) JOIN choices ON call = seq"
        " ORDER BY seq, number",
        (session, _CALLS),
    ):
        sampled = sampled or bool(row["ids"])
        digest.update(len(row["ids"]).to_bytes(8, "little") + row["ids"])
        seen.greedy = seen.greedy and row["temperature"] == 0
    if sampled:
        seen.digests.append(digest.digest())
