"""A session's calls as they are readable: what each of them added to the conversation."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from storage.calls import GROWN, Message
from storage.database import Database
from storage.states import CallOutcome
from storage.types import SessionKey


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call, without the bytes of its request and its response: to read those costs the whole history each time."""

    seq: int
    dialect: str
    complete: bool
    parent: int | None
    """The call whose conversation, and whose answer number ``continues``, come before ``messages``."""
    continues: int | None
    messages: list[Message]
    """What is new in the request."""
    output: list[Message]
    response_id: str | None

    @property
    def lengthens(self) -> bool:
        """What is new is the end of the parent's one text."""
        return bool(self.messages) and self.messages[0].get(GROWN) is True


def of_session(db: Database, session: SessionKey) -> list[Exchange]:
    """The session's calls, in the order in which they ended: each behind its parent."""
    return [
        Exchange(
            row["seq"],
            row["dialect"],
            row["outcome"] == CallOutcome.COMPLETE,
            row["parent"],
            row["continues"],
            orjson.loads(row["input"]),
            orjson.loads(row["output"]),
            row["response_id"],
        )
        for row in db.all(
            "SELECT seq, dialect, outcome, parent, continues, input, output, response_id FROM calls"
            " WHERE session = ? ORDER BY seq",
            (session,),
        )
    ]
