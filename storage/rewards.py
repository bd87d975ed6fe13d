"""Rewards: numbers for sessions, never overwritten. One that comes before its session waits for it."""

from __future__ import annotations

from typing import Any

from storage.database import Database
from storage.types import Identity, Owner, Reward, SessionKey

WAIT_SECONDS = 24 * 3600


def insert(db: Database, reward: Reward) -> None:
    """Keep a reward; a repeated one (same id) is kept once."""
    row = db.first(
        "SELECT key FROM sessions WHERE owner = ? AND session_id = ? AND episode = coalesce(?, episode)"
        " ORDER BY episode DESC LIMIT 1",
        (reward.identity.owner, reward.identity.session_id, reward.episode),
    )
    db.execute(
        "INSERT OR IGNORE INTO rewards (id, owner, session_id, episode, session, name, source, value, reason,"
        " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            reward.id,
            reward.identity.owner,
            reward.identity.session_id,
            reward.episode,
            row["key"] if row else None,
            reward.name,
            reward.source,
            reward.value,
            reward.reason,
            reward.created_at,
        ),
    )


def attach_waiting(db: Database, identity: Identity, episode: int, session: SessionKey, at: float) -> None:
    """A session begins: rewards for it that came up to `WAIT_SECONDS` before are its own."""
    db.execute(
        "UPDATE rewards SET session = ?1 WHERE owner = ?2 AND session_id = ?3 AND session IS NULL"
        " AND coalesce(episode, ?4) = ?4 AND created_at >= ?5",
        (session, identity.owner, identity.session_id, episode, at - WAIT_SECONDS),
    )


def of_session(db: Database, session: SessionKey) -> list[Reward]:
    """The session's rewards, oldest first; of one name and source the last one counts."""
    rows = db.all("SELECT * FROM rewards WHERE session = ? ORDER BY created_at, id", (session,))
    return [
        Reward(
            id=row["id"],
            identity=Identity(Owner(row["owner"]), row["session_id"]),
            episode=row["episode"],
            name=row["name"],
            source=row["source"],
            value=row["value"],
            reason=row["reason"],
            created_at=row["created_at"],
        )
        for row in rows
    ]


def rows(db: Database, session: SessionKey) -> list[dict[str, Any]]:
    """The session's rewards as the admin API shows them, oldest first.

    ``late``: it came when the session's group had been scored, and is kept without any effect.
    """
    found = db.all(
        "SELECT id, name, source, value, reason, created_at, created_at > coalesce((SELECT scored_at FROM groups"
        ' JOIN group_members ON "group" = groups.id WHERE group_members.session = rewards.session), 1e300) AS late'
        " FROM rewards WHERE session = ? ORDER BY created_at, id",
        (session,),
    )
    return [dict(row) | {"late": bool(row["late"])} for row in found]
