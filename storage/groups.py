"""Groups: forming one is the claim on its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from storage import counts, judging, sessions
from storage.database import Database, Row
from storage.errors import NotFound
from storage.states import GROUP_MOVES, GroupState, Outcome, RunState, SessionState, check_move
from storage.types import Group, GroupId, Member, Owner, RunId, Session, SessionKey

CLIENTS = "the clients' own rewards"
"""Who judged where nobody was asked."""
WEIGHTED = "the clients' own rewards, weighted"
"""The same, combined of several: each was standardised within the group, so that the sum says nothing outside of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whose scores a group has, and how they came about."""

    judge: str
    tokens: int = 0
    """What they cost, prompts and answers together."""
    seed: int | None = None
    """As `Group.judge_seed`; None where nobody was asked."""
    cut: dict[str, int] | None = None
    """As `Group.judge_cut`."""
    key: str | None = None
    """Digest of what was asked; the same for equal groups under the same terms."""


def claim(db: Database, group: GroupId, members: Sequence[Session], at: float) -> bool:
    """Form a group of sessions of one owner, scenario and split; each is kept with the one version that sampled it.

    Returns False, and forms nothing, when one of them is no longer closed or already belongs to a group.
    """
    first = members[0]
    assert all((s.owner, s.scenario, s.split) == (first.owner, first.scenario, first.split) for s in members)
    with db.transaction():
        for session in members:
            free = db.first(
                "SELECT 1 FROM sessions WHERE key = ? AND state = ?"
                " AND key NOT IN (SELECT session FROM group_members) AND key NOT IN (SELECT session FROM outcomes)",
                (session.key, SessionState.CLOSED),
            )
            if not free:
                return False
        db.insert(
            "groups",
            id=group,
            owner=first.owner,
            scenario=first.scenario,
            split=first.split,
            state=GroupState.READY,
            created_at=at,
        )
        for session in members:
            db.insert("group_members", session=session.key, group=group, sampled_by=_sampled_by(db, session.key))
    return True


def _sampled_by(db: Database, session: SessionKey) -> int | None:
    """The one version that sampled all that can be trained of a session; None: there were several, or nothing can."""
    found = db.all("SELECT DISTINCT version FROM calls WHERE session = ? AND not_trainable IS NULL LIMIT 2", (session,))
    return found[0]["version"] if len(found) == 1 else None


def in_state(db: Database, state: GroupState, scenario: str | None = None) -> list[Group]:
    """The groups in a state, oldest first."""
    rows = db.all(
        "SELECT * FROM groups WHERE state = ? AND scenario = coalesce(?, scenario) ORDER BY created_at, id",
        (state, scenario),
    )
    return [_group(db, row) for row in rows]


def get(db: Database, group: GroupId) -> Group:
    row = db.first("SELECT * FROM groups WHERE id = ?", (group,))
    if row is None:
        raise NotFound(f"there is no group {group}")
    return _group(db, row)


def set_scores(db: Database, group: Group, members: Sequence[Member], verdict: Verdict, at: float) -> None:
    """Keep the scores and their reasons. Inside a transaction."""
    move(db, group, GroupState.SCORED)
    db.execute(
        "UPDATE groups SET judge = ?, judge_seed = ?, judge_cut = ?, judge_key = ?, scored_at = ? WHERE id = ?",
        (verdict.judge, verdict.seed, _json(verdict.cut), verdict.key, at, group.id),
    )
    if verdict.tokens:
        judging.spend(db, group.id, verdict.tokens, at)
    for member in members:
        db.execute(
            "UPDATE group_members SET reward = ?, explanation = ?, attempt = ? WHERE session = ?",
            (member.reward, member.explanation, member.attempt, member.session),
        )


def move(db: Database, group: Group, state: GroupState, reason: str | None = None, run: RunId | None = None) -> None:
    """Bring a group into its next state; checks the move against what the database holds."""
    current = get(db, group.id)
    check_move(GROUP_MOVES, current.state, state, f"group {group.id}")
    db.execute(
        "UPDATE groups SET state = ?, reason = ?, run = coalesce(?, run) WHERE id = ?",
        (state, reason, run, group.id),
    )


def complete_since(db: Database, group: Group) -> float:
    """When the last of its members closed."""
    row = db.first(
        'SELECT max(closed_at) FROM group_members JOIN sessions ON key = session WHERE "group" = ?', (group.id,)
    )
    return float(row[0] or 0.0) if row is not None else 0.0


def free_members(db: Database, group: Group) -> list[Member]:
    """The members of which nothing has become yet."""
    return [member for member in group.members if not sessions.has_outcome(db, member.session)]


def trained_members(db: Database, group: Group) -> list[Member]:
    """The members that were trained on."""
    trained = db.all(
        'SELECT session FROM group_members JOIN outcomes USING (session) WHERE "group" = ? AND outcome = ?',
        (group.id, Outcome.TRAINED),
    )
    keys = {row["session"] for row in trained}
    return [member for member in group.members if member.session in keys]


def set_consumed(db: Database, run: RunId, consumed: Sequence[GroupId]) -> None:
    """What a run learns from, recorded before it starts. Inside a transaction."""
    for group in consumed:
        db.insert("run_groups", run=run, group=group)


def consumed_by(db: Database, run: RunId) -> list[Group]:
    """The new groups that a run took, whatever came of it."""
    rows = db.all(
        'SELECT groups.* FROM run_groups JOIN groups ON groups.id = "group" WHERE run_groups.run = ? AND NOT replayed',
        (run,),
    )
    return [_group(db, row) for row in rows]


def rows_of_run(db: Database, run: RunId) -> list[dict[str, Any]]:
    """The groups that a run took, and those that it skipped, oldest first; ``spread``: of best and worst reward.

    ``replayed``: they were trained before, and the run trains them again.
    """
    found = db.all(
        "SELECT id, scenario, state, reason,"
        ' EXISTS (SELECT 1 FROM run_groups WHERE run = ?1 AND "group" = groups.id AND replayed) AS replayed,'
        ' (SELECT max(reward) - min(reward) FROM group_members WHERE "group" = groups.id) AS spread FROM groups'
        ' WHERE run = ?1 OR id IN (SELECT "group" FROM run_groups WHERE run = ?1) ORDER BY created_at, id',
        (run,),
    )
    return [dict(row) | {"replayed": bool(row["replayed"])} for row in found]


def acquit(db: Database, run: RunId) -> None:
    """That a run failed is no fault of the groups that it took."""
    db.execute("UPDATE run_groups SET blamed = 0 WHERE run = ?", (run,))


def failed_runs(db: Database, group: GroupId) -> int:
    """How many runs that took the group failed, but for those that failed by no fault of their groups (`acquit`).

    Runs that would have trained it again do not count.
    """
    return db.number(
        'SELECT count(*) FROM run_groups JOIN runs ON runs.id = run_groups.run WHERE run_groups."group" = ?'
        " AND run_groups.blamed AND NOT replayed AND runs.state = ?",
        (group, RunState.FAILED),
    )


def rows(db: Database, where: dict[str, Any], limit: int, cursor: str | None) -> list[dict[str, Any]]:
    """Groups as the admin API lists them, newest first."""
    terms = ["1"] + [f"{column} = ?" for column in where]
    parameters = list(where.values())
    if cursor is not None:
        terms.append("id < ?")
        parameters.append(cursor)
    found = db.all(
        'SELECT *, (SELECT count(*) FROM group_members WHERE "group" = id) AS members'
        f" FROM groups WHERE {' AND '.join(terms)} ORDER BY id DESC LIMIT ?",
        (*parameters, limit),
    )
    shown = [{**dict(row), "judge_cut": judging.read_cut(row["judge_cut"])} for row in found]
    for row in shown:
        del row["judge_key"]
    return shown


def member_rows(db: Database, group: GroupId) -> list[dict[str, Any]]:
    """The members of a group with their scores, explanations and what became of them."""
    found = db.all(
        "SELECT sessions.session_id, episode, version, reward, explanation, outcome, outcomes.reason AS outcome_reason"
        " FROM group_members JOIN sessions ON key = group_members.session"
        ' LEFT JOIN outcomes ON outcomes.session = key WHERE "group" = ? ORDER BY key',
        (group,),
    )
    return [dict(row) for row in found]


def states(db: Database) -> dict[str, int]:
    """How many groups are in each state."""
    return counts.of(db, "group")


def _json(cut: dict[str, int] | None) -> str | None:
    return None if cut is None else orjson.dumps(cut).decode()


def _group(db: Database, row: Row) -> Group:
    members = db.all('SELECT * FROM group_members WHERE "group" = ? ORDER BY session', (row["id"],))
    return Group(
        id=GroupId(row["id"]),
        owner=Owner(row["owner"]),
        scenario=row["scenario"],
        split=row["split"],
        state=GroupState(row["state"]),
        reason=row["reason"],
        created_at=row["created_at"],
        members=tuple(Member(SessionKey(m["session"]), m["reward"], m["explanation"], m["attempt"]) for m in members),
        judge=row["judge"],
        judge_tokens=row["judge_tokens"],
        judge_seed=row["judge_seed"],
        judge_cut=judging.read_cut(row["judge_cut"]),
        judge_silences=row["judge_silences"],
        judge_due=row["judge_due"],
        run=RunId(row["run"]) if row["run"] else None,
    )
