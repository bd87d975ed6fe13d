"""Sessions: opened by a call, closed behind their calls, and opened again as the next episode."""

from __future__ import annotations

from typing import Any

from storage import counts, rewards, runs
from storage.database import Database, Row
from storage.errors import NotFound
from storage.states import SESSION_MOVES, ClosedBy, Outcome, SessionState, check_move
from storage.types import CallEnd, CallStart, Identity, Owner, RunId, Session, SessionKey, TaggedBy, VersionNumber

UNTAGGED = "untagged"
AMBIGUOUS = "ambiguous"
"""Somewhere in it a call may belong to another session, or a call of it stands in another."""
NO_SCENARIO = "no scenario: tag its calls with X-Scenario-Id"


def newest(db: Database, identity: Identity) -> Session | None:
    """The newest episode of a session id."""
    row = db.first(
        "SELECT * FROM sessions WHERE owner = ? AND session_id = ? ORDER BY episode DESC LIMIT 1",
        (identity.owner, identity.session_id),
    )
    return _session(row) if row else None


def find(db: Database, identity: Identity, episode: int | None) -> Session | None:
    """An episode of a session id; ``episode`` None: the newest."""
    if episode is None:
        return newest(db, identity)
    row = db.first(
        "SELECT * FROM sessions WHERE owner = ? AND session_id = ? AND episode = ?",
        (identity.owner, identity.session_id, episode),
    )
    return _session(row) if row else None


def get(db: Database, key: SessionKey) -> Session:
    row = db.first("SELECT * FROM sessions WHERE key = ?", (key,))
    if row is None:
        raise NotFound(f"there is no session number {key}")
    return _session(row)


def takes_calls(db: Database, session: Session) -> bool:
    """Whether a further call belongs to this episode: it is open, or closed for being idle and not yet claimed."""
    if session.state is SessionState.OPEN:
        return True
    if session.state is SessionState.SKIPPED or session.closed_by is not ClosedBy.IDLE:
        return False
    return not is_claimed(db, session.key)


def is_claimed(db: Database, key: SessionKey) -> bool:
    """Whether the trainer has taken the session: into a group, or out of training with a reason."""
    return bool(
        db.first(
            "SELECT 1 FROM group_members WHERE session = ?1 UNION ALL SELECT 1 FROM outcomes WHERE session = ?1",
            (key,),
        )
    )


def open_for_call(db: Database, start: CallStart) -> tuple[SessionKey, bool]:
    """The episode to which a call that starts now belongs, opened or opened again where needed; whether it is new."""
    session = newest(db, start.identity)
    is_new = session is None or not takes_calls(db, session)
    if session is None or is_new:
        key = _open(db, start, session.episode + 1 if session else 1)
    else:
        key = _go_on(db, session, start)
    for session_id in start.ambiguous:
        _mark_ambiguous(db, Identity(start.identity.owner, session_id))
    return key, is_new


def _go_on(db: Database, session: Session, start: CallStart) -> SessionKey:
    if session.state is SessionState.CLOSED:
        check_move(SESSION_MOVES, session.state, SessionState.OPEN, f"session {session.session_id}")
        db.execute(
            "UPDATE sessions SET state = ?, closed_by = NULL, closed_at = NULL WHERE key = ?",
            (SessionState.OPEN, session.key),
        )
    if start.split != session.split == "train":
        # What one call says is for evaluation alone is never trained on.
        db.execute("UPDATE sessions SET split = ? WHERE key = ?", (start.split, session.key))
    inferred = session.scenario_by is TaggedBy.INFERRED and start.scenario_by is not TaggedBy.INFERRED
    if start.scenario is not None and (session.scenario is None or inferred):
        db.execute(
            "UPDATE sessions SET scenario = ?, scenario_by = ? WHERE key = ?",
            (start.scenario, start.scenario_by, session.key),
        )
    return session.key


def _mark_ambiguous(db: Database, identity: Identity) -> None:
    """The session is skipped: now when it is closed, else when it closes. What a group has claimed is left alone."""
    session = newest(db, identity)
    if session is None or session.state is SessionState.SKIPPED or is_claimed(db, session.key):
        return
    if session.state is SessionState.CLOSED:
        _skip(db, session, AMBIGUOUS)
    else:
        db.execute("UPDATE sessions SET reason = ? WHERE key = ?", (AMBIGUOUS, session.key))


def _open(db: Database, start: CallStart, episode: int) -> SessionKey:
    key = SessionKey(
        db.insert(
            "sessions",
            owner=start.identity.owner,
            session_id=start.identity.session_id,
            episode=episode,
            scenario=start.scenario,
            split=start.split,
            state=SessionState.OPEN,
            version=start.pinned,
            session_by=start.session_by,
            scenario_by=start.scenario_by,
            opened_at=start.started_at,
            last_call_at=start.started_at,
        )
    )
    rewards.attach_waiting(db, start.identity, episode, key, start.started_at)
    return key


def count_call(db: Database, key: SessionKey, start: CallStart, end: CallEnd) -> None:
    """A call of the session ended. An untagged one was its whole session."""
    db.execute(
        "UPDATE sessions SET calls = calls + 1, last_call_at = max(last_call_at, ?) WHERE key = ?",
        (end.ended_at, key),
    )
    if start.session_by is TaggedBy.NONE:
        _close(db, get(db, key), ClosedBy.ENDED, end.ended_at)
        _skip(db, get(db, key), UNTAGGED)


def close(db: Database, identity: Identity, by: ClosedBy, at: float) -> SessionKey | None:
    """Close the newest episode; an ambiguous one, and one that has nothing to be compared with, is skipped.

    Returns which it is, None where there is none.
    """
    session = newest(db, identity)
    if session is None:
        return None
    if session.state is SessionState.CLOSED and by is not ClosedBy.IDLE:
        # An explicit end stands above an idle one: the session does not open again.
        db.execute("UPDATE sessions SET closed_by = ? WHERE key = ?", (by, session.key))
    if session.state is SessionState.OPEN:
        _close(db, session, by, at)
        reason = session.reason or (NO_SCENARIO if session.scenario is None else None)
        if reason is not None:
            _skip(db, get(db, session.key), reason)
    return session.key


def _close(db: Database, session: Session, by: ClosedBy, at: float) -> None:
    check_move(SESSION_MOVES, session.state, SessionState.CLOSED, f"session {session.session_id}")
    db.execute(
        "UPDATE sessions SET state = ?, closed_by = ?, closed_at = ? WHERE key = ?",
        (SessionState.CLOSED, by, at, session.key),
    )


def _skip(db: Database, session: Session, reason: str) -> None:
    check_move(SESSION_MOVES, session.state, SessionState.SKIPPED, f"session {session.session_id}")
    db.execute("UPDATE sessions SET state = ?, reason = ? WHERE key = ?", (SessionState.SKIPPED, reason, session.key))


def opened(db: Database) -> list[Session]:
    """All open sessions: what the proxy must know again after a restart."""
    rows = db.all("SELECT * FROM sessions WHERE state = ?", (SessionState.OPEN,))
    return [_session(row) for row in rows]


def waiting(db: Database) -> list[Session]:
    """Closed sessions that nothing has been done with yet, oldest first."""
    rows = db.all(
        "SELECT sessions.* FROM waiting_sessions JOIN sessions ON key = waiting_sessions.session"
        " ORDER BY closed_at, key"
    )
    return [_session(row) for row in rows]


def set_outcome(
    db: Database, key: SessionKey, outcome: Outcome, reason: str | None, run: RunId | None, at: float
) -> None:
    """What became of a session; said once."""
    db.insert("outcomes", session=key, outcome=outcome, reason=reason, run=run, at=at)


def has_outcome(db: Database, key: SessionKey) -> bool:
    return db.first("SELECT 1 FROM outcomes WHERE session = ?", (key,)) is not None


def steps_behind(db: Database, key: SessionKey) -> int:
    """How many updates lie between the oldest version that sampled in the session and the newest one.

    Its own version counts, and that of every call that can be trained: a client may name another one.
    """
    found = db.all(
        "SELECT version FROM sessions WHERE key = ?1"
        " UNION SELECT version FROM calls WHERE session = ?1 AND not_trainable IS NULL",
        (key,),
    )
    return max(runs.steps_behind(db, VersionNumber(row["version"])) for row in found)


def rows(db: Database, where: dict[str, Any], limit: int, cursor: int | None) -> list[dict[str, Any]]:
    """Sessions as the admin API lists them, newest first, below ``cursor``; ``where`` compares columns."""
    terms = ["1"] + [f"sessions.{column} = ?" for column in where]
    parameters = list(where.values())
    if cursor is not None:
        terms.append("sessions.key < ?")
        parameters.append(cursor)
    found = db.all(
        'SELECT sessions.*, outcomes.outcome, outcomes.reason AS outcome_reason, outcomes.run, "group" FROM sessions'
        " LEFT JOIN outcomes ON outcomes.session = key LEFT JOIN group_members ON group_members.session = key"
        f" WHERE {' AND '.join(terms)} ORDER BY key DESC LIMIT ?",
        (*parameters, limit),
    )
    return [dict(row) for row in found]


def states(db: Database) -> dict[str, int]:
    """How many sessions are in each state, and of the closed ones what became of them."""
    return counts.of(db, "session")


def count_skipped(db: Database, reason: str) -> int:
    return counts.of(db, "skipped").get(reason, 0)


def alone(db: Database, newest: int) -> tuple[int, int]:
    """Of the ``newest`` sessions: how many have a scenario, and how many one that no other session ever had."""
    row = db.first(
        "SELECT count(*), sum(NOT EXISTS (SELECT 1 FROM sessions AS other"
        " WHERE other.owner = s.owner AND other.scenario = s.scenario AND other.key <> s.key))"
        " FROM (SELECT * FROM sessions ORDER BY key DESC LIMIT ?) AS s WHERE scenario IS NOT NULL",
        (newest,),
    )
    assert row is not None
    return row[0], row[1] or 0


def skipped_by_run(db: Database, run: RunId) -> list[dict[str, Any]]:
    """The sessions of a run's groups that were not trained on, with their reasons."""
    found = db.all(
        "SELECT session_id, episode, outcomes.reason FROM outcomes JOIN sessions ON key = session"
        " WHERE run = ? AND outcome = ? ORDER BY key",
        (run, Outcome.SKIPPED),
    )
    return [dict(row) for row in found]


def _session(row: Row) -> Session:
    return Session(
        key=SessionKey(row["key"]),
        owner=Owner(row["owner"]),
        session_id=row["session_id"],
        episode=row["episode"],
        scenario=row["scenario"],
        split=row["split"],
        state=SessionState(row["state"]),
        closed_by=ClosedBy(row["closed_by"]) if row["closed_by"] else None,
        reason=row["reason"],
        version=VersionNumber(row["version"]),
        session_by=TaggedBy(row["session_by"]),
        scenario_by=TaggedBy(row["scenario_by"]),
        opened_at=row["opened_at"],
        last_call_at=row["last_call_at"],
        closed_at=row["closed_at"],
        calls=row["calls"],
    )
