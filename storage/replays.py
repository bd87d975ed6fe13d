"""Replay: what is on record of a scenario's groups, and which of them a run trained again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from storage.database import Database
from storage.states import GroupState, RunState
from storage.types import GroupId, Owner, RunId, VersionNumber

REMEMBERED = 1024
"""The newest groups of a scenario that are looked at."""


@dataclass(frozen=True, slots=True)
class Past:
    """A group that was scored."""

    id: GroupId
    judge: str
    """As `Verdict.judge`."""
    trained: bool
    """Whether it was trained, and no run failed that trained it again."""
    times: int
    """How often it was trained again."""
    members: tuple[tuple[VersionNumber, float], ...]
    """Of each the version that sampled it (the session's, where it was more than one), and the reward."""


def of_scenario(db: Database, owner: Owner, scenario: str) -> list[Past]:
    """The newest scored groups of a scenario, but for those that only evaluate, newest first."""
    found = db.all(
        "SELECT kind.id, judge, kind.state, coalesce(sampled_by, sessions.version) AS version, reward,"
        ' (SELECT count(*) FROM run_groups WHERE "group" = kind.id AND replayed) AS times,'
        ' EXISTS (SELECT 1 FROM run_groups JOIN runs ON runs.id = run_groups.run WHERE "group" = kind.id'
        " AND replayed AND blamed AND runs.state = ?3) AS failed"
        " FROM (SELECT * FROM groups WHERE owner = ?1 AND scenario = ?2 AND split = 'train' AND scored_at IS NOT NULL"
        " ORDER BY id DESC LIMIT ?4) AS kind"
        ' JOIN group_members ON "group" = kind.id JOIN sessions ON key = session WHERE reward IS NOT NULL'
        " ORDER BY kind.id DESC, session",
        (owner, scenario, RunState.FAILED, REMEMBERED),
    )
    return [
        Past(
            GroupId(group),
            rows[0]["judge"],
            rows[0]["state"] == GroupState.TRAINED and not rows[0]["failed"],
            rows[0]["times"],
            tuple((VersionNumber(row["version"]), row["reward"]) for row in rows),
        )
        for group, found_rows in groupby(found, key=lambda row: str(row["id"]))
        if (rows := list(found_rows))
    ]


def without_variance(db: Database, scenario: str | None = None) -> list[tuple[GroupId, Owner, str]]:
    """The groups, with owner and scenario, whose rewards were found equal since the last run that did not fail."""
    rows = db.all(
        "SELECT id, owner, scenario FROM groups WHERE state = ?1 AND split = 'train' AND run IS NULL"
        " AND scenario = coalesce(?2, scenario)"
        " AND scored_at > (SELECT coalesce(max(ended_at), 0) FROM runs WHERE state IN (?3, ?4))"
        " ORDER BY created_at, id",
        (GroupState.SKIPPED, scenario, RunState.SUCCEEDED, RunState.SKIPPED),
    )
    return [(GroupId(row["id"]), Owner(row["owner"]), row["scenario"]) for row in rows]


def record(db: Database, run: RunId, groups: Sequence[GroupId]) -> None:
    """That a run trains them again, recorded before it starts. Inside a transaction."""
    for group in groups:
        db.insert("run_groups", run=run, group=group, replayed=1)
