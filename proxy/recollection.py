"""What inference knew of a session before a restart, from what is readable of its calls.

Each call is its parent's conversation and a little more: so a session costs its length once, however many turns it has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from proxy.conversations import Conversation, GrowingText
from proxy.dialects import BY_NAME, Continued, Issued
from storage.calls import Message
from storage.exchanges import Exchange
from storage.types import Owner

_LENGTHENED = "completions"
"""The dialect whose one prompt grows, the answers in it."""


@dataclass(frozen=True, slots=True)
class Recollected:
    """A call as inference saw it."""

    conversation: Conversation | GrowingText
    continued: Continued
    output: list[Message]
    issued: Issued


def recollect(
    owner: Owner, calls: list[Exchange], newest: int, lengths: OrderedDict[int, None]
) -> Iterator[Recollected]:
    """The ``newest`` complete calls of a session, of all its ``calls``, the oldest of them first.

    ``lengths`` of texts with their answers, as `GrowingText` has them: what is given first must be learnt first.
    """
    wanted = {call.seq for call in [call for call in calls if call.complete and call.dialect in BY_NAME][-newest:]}
    told: dict[int | None, _Told] = {}
    for call in calls:
        now = told[call.seq] = _Told(_said(owner, call, told.get(call.parent)), call.output)
        if call.seq in wanted:
            grows = call.dialect == _LENGTHENED and isinstance(now.said, str)
            yield Recollected(
                GrowingText(owner, str(now.said), lengths) if grows else now.conversation(owner),
                Continued(None, _named(call.messages, "tool_call_id")),
                call.output,
                Issued(call.response_id, tuple(name for message in call.output for name in _called(message))),
            )


@dataclass(frozen=True, slots=True)
class _Told:
    """What stood in a request, and what was answered."""

    said: Conversation | str
    """A text: the user's, and nothing else."""
    output: list[Message]

    def conversation(self, owner: Owner) -> Conversation:
        if isinstance(self.said, Conversation):
            return self.said
        return Conversation(owner, [{"role": "user", "content": self.said}])


def _said(owner: Owner, call: Exchange, before: _Told | None) -> Conversation | str:
    new = call.messages
    if before is None:
        text = new[0].get("content") if len(new) == 1 and new[0].keys() == {"role", "content"} else None
        return text if isinstance(text, str) and new[0]["role"] == "user" else Conversation(owner, new)
    if isinstance(before.said, str) and call.lengthens:
        return before.said + str(new[0].get("content"))
    answer = before.output[call.continues : call.continues + 1] if call.continues is not None else []
    following = [*answer, *new]
    return before.conversation(owner).going_on(following) if following else before.said


def _called(message: Message) -> tuple[str, ...]:
    """The ids of the tool calls in an answer, those that a server's own tools have among its parts."""
    return _named(message.get("tool_calls"), "id") + _named(message.get("content"), "call_id")


def _named(items: Any, name: str) -> tuple[str, ...]:
    found = [item.get(name) for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return tuple(one for one in found if isinstance(one, str))
