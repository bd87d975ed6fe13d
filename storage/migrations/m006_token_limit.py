"""How many tokens an answer may have, as the client says it; 0: it says nothing. Of older calls it is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    # The rows are not touched: a million of them would be gigabytes of WAL.
    db.execute("ALTER TABLE calls ADD COLUMN token_limit INTEGER")
