"""Which version sampled each member of a group, so that versions are compared without a look at calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE group_members ADD COLUMN sampled_by INTEGER")
    db.execute(
        "UPDATE group_members SET sampled_by = (SELECT iif(min(version) = max(version), min(version), NULL)"
        " FROM calls WHERE calls.session = group_members.session AND not_trainable IS NULL)"
    )
