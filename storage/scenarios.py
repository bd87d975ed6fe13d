"""Scenarios: what became of the sessions and groups of each, how many of their prompts drifted, and the progress."""

from __future__ import annotations

from typing import Any

from storage import progress
from storage.database import Database
from storage.types import Owner

_RECENT = 10_000
"""Sessions that are looked at: the newest, so that a list costs the same however much is kept."""
_LAST = 2**63 - 1


def rows(db: Database, where: dict[str, Any], limit: int, cursor: int | None) -> list[dict[str, Any]]:
    """Scenarios as the admin API lists them, the last attempted first; ``where`` compares columns of sessions.

    ``newest``: the key of the scenario's newest session, below ``cursor``. ``sessions``: by state, closed ones by what
    became of them; ``groups``: by state. ``drift``: of the sessions that the trainer looked at, how many calls go on
    from an answer, how many of these do not begin with its tokens, and in how many sessions the first was of each kind.
    ``progress``: as `progress.of_scenario`.
    """
    terms = ["scenario IS NOT NULL"] + [f"{column} = ?" for column in where]
    recent = (
        "WITH recent AS (SELECT key, owner, scenario, state, last_call_at FROM sessions"
        f" WHERE {' AND '.join(terms)} ORDER BY key DESC LIMIT ?)"
    )
    parameters = (*where.values(), _RECENT)
    listed = db.all(
        f"{recent} SELECT owner, scenario, max(key) AS newest, max(last_call_at) AS last_call_at FROM recent"
        " GROUP BY owner, scenario HAVING max(key) < ? ORDER BY newest DESC LIMIT ?",
        (*parameters, _LAST if cursor is None else cursor, limit),
    )
    found = {(row["owner"], row["scenario"]): _shown(dict(row)) for row in listed}
    for what, counted in (("sessions", _SESSIONS), ("groups", _GROUPS)):
        for row in db.all(f"{recent} {counted}", parameters):
            if (one := found.get((row["owner"], row["scenario"]))) is not None:
                one[what][row["name"]] = row["n"]
    for row in db.all(f"{recent} {_DRIFTS}", parameters):
        if (one := found.get((row["owner"], row["scenario"]))) is not None:
            _add(one["drift"], row)
    for one in found.values():
        one["progress"] = progress.of_scenario(db, Owner(one["owner"]), one["scenario"])
    return list(found.values())


_SESSIONS = (
    "SELECT owner, scenario, coalesce(outcome, state) AS name, count(*) AS n FROM recent"
    " LEFT JOIN outcomes ON session = key GROUP BY owner, scenario, name"
)
_GROUPS = (
    "SELECT recent.owner, recent.scenario, groups.state AS name, count(DISTINCT id) AS n FROM recent"
    ' JOIN group_members ON session = key JOIN groups ON id = "group" GROUP BY recent.owner, recent.scenario, name'
)
_DRIFTS = (
    "SELECT owner, scenario, iif(drifted, coalesce(kind, 'not known'), NULL) AS name, count(*) AS sessions,"
    " sum(continued) AS continued, sum(drifted) AS drifted FROM recent JOIN drifts ON session = key"
    " GROUP BY owner, scenario, name"
)


def _shown(listed: dict[str, Any]) -> dict[str, Any]:
    drift = {"sessions": 0, "continued": 0, "drifted": 0, "kinds": {}}
    return {**listed, "sessions": {}, "groups": {}, "drift": drift}


def _add(drift: dict[str, Any], row: Any) -> None:
    for name in ("sessions", "continued", "drifted"):
        drift[name] += row[name]
    if row["name"] is not None:
        drift["kinds"][row["name"]] = row["sessions"]
