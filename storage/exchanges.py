"""A session's calls as they are readable: what each of them added to the conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    agent: str | None
    started_at: float
    tools: list[Any]
    """Those that were offered; empty where they are the parent's."""

    @property
    def is_answered(self) -> bool:
        return self.complete and bool(self.output)

    @property
    def lengthens(self) -> bool:
        """What is new is the end of the parent's one text."""
        return bool(self.messages) and self.messages[0].get(GROWN) is True

    @property
    def restates(self) -> bool:
        """What is new begins with an answer, said otherwise than the parent said it."""
        return (
            self.parent is not None
            and self.continues is None
            and bool(self.messages)
            and self.messages[0].get("role") == "assistant"
        )


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
            row["agent"],
            row["started_at"],
            orjson.loads(row["tools"] or "[]"),
        )
        for row in db.all(
            "SELECT seq, dialect, outcome, parent, continues, input, output, response_id, agent, started_at, tools"
            " FROM calls WHERE session = ? ORDER BY seq",
            (session,),
        )
    ]
