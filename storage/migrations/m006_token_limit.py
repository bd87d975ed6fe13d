"""How many tokens an answer may have, as the client says it.

Of older calls only the limit that vLLM used is known; it is taken for the client's, as it was until now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database


def migrate(db: Database) -> None:
    db.execute("ALTER TABLE calls ADD COLUMN token_limit INTEGER")
    db.execute("UPDATE calls SET token_limit = json_extract(sampling, '$.max_tokens') WHERE sampling IS NOT NULL")
