"""From a session's calls to what the judge reads of it: all that was said, in the order of time.

A call goes on with the conversation of the call before it, where that has gone on with no other; else it begins one of
its own: a sub-agent, a history that the agent rewrote, a second question about the same. Messages of the first
conversation stand as they are. Those of the others say which it is (``conversation``), and the first of each says what
came before it (``after``). An answer of an agent (`X-Agent`) other than the first bears its name (``agent``), one of
several to the same request its number (``choice``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage.exchanges import Exchange
from storage.text import dumps
from trainer.question import Attempt, Message


@dataclass(slots=True)
class _Conversation:
    number: int
    after: dict[str, int] | None = None
    """Which conversation it goes on from, and after how many of its messages; said by its first message."""
    length: int = 0


@dataclass(slots=True)
class _Place:
    """Where a call stands."""

    conversation: _Conversation
    before: int
    """How many messages of its conversation come before its answer."""
    goes_on: Exchange | None
    """The call that its conversation goes on with."""


@dataclass(slots=True)
class _Telling:
    agent: str | None
    """The first one's."""
    messages: list[Message] = field(default_factory=list)
    places: dict[int, _Place] = field(default_factory=dict)
    conversations: int = 0

    def tell(self, call: Exchange, parent: Exchange | None, children: Sequence[Exchange]) -> None:
        above = self.places[parent.seq] if parent is not None else None
        if above is not None and above.goes_on is call:
            conversation = above.conversation
        else:
            self.conversations += 1
            conversation = _Conversation(self.conversations)
            if above is not None and parent is not None:
                conversation.after = self._branch(call, above)
                if call.continues is not None and not _goes_on_alike(call, above):
                    self._say(conversation, parent.output[call.continues], parent.agent, call.continues)
        for message in call.messages:
            self._say(conversation, message, call.agent if message.get("role") == "assistant" else None)
        goes_on = next((child for child in children if _is_behind(child, call)), None)
        self.places[call.seq] = _Place(conversation, conversation.length, goes_on)
        for number, answer in _answers(call, goes_on):
            self._say(conversation, answer, call.agent, number)

    def _branch(self, call: Exchange, above: _Place) -> dict[str, int]:
        return {
            "conversation": above.conversation.number,
            "messages": above.before + (call.continues is not None and _goes_on_alike(call, above)),
        }

    def _say(self, conversation: _Conversation, message: Message, agent: str | None, choice: int | None = None) -> None:
        marks: dict[str, Any] = {}
        if conversation.number > 1:
            marks["conversation"] = conversation.number
        if conversation.after is not None:
            marks["after"], conversation.after = conversation.after, None
        if agent is not None and agent != self.agent:
            marks["agent"] = agent
        if choice is not None:
            marks["choice"] = choice + 1
        conversation.length += 1
        self.messages.append({**message, **marks} if marks else message)


def attempt(calls: Iterable[Exchange]) -> Attempt:
    """What the judge sees of the calls of a session, in whatever order they are given.

    Left out is what no answer came of: a call that failed or was abandoned, unless a later one goes on from it.
    """
    by_seq = {call.seq: call for call in calls}
    shown = _shown(by_seq)
    children: defaultdict[int, list[Exchange]] = defaultdict(list)
    for call in shown:
        if call.parent is not None:
            children[call.parent].append(call)
    telling = _Telling(shown[0].agent if shown else None)
    for call in shown:
        telling.tell(call, by_seq[call.parent] if call.parent is not None else None, children[call.seq])
    tools = {dumps(tool): tool for call in shown for tool in call.tools}
    return Attempt(tuple(telling.messages), tuple(tools.values()))


def _shown(by_seq: dict[int, Exchange]) -> list[Exchange]:
    """The calls that were answered, in the order of time, each behind those that it goes on from."""
    shown: dict[int, Exchange] = {}
    for call in sorted(by_seq.values(), key=lambda one: (one.started_at, one.seq)):
        if not call.is_answered:
            continue
        line = [call]
        while (parent := line[-1].parent) is not None and parent not in shown:
            line.append(by_seq[parent])
        shown.update({one.seq: one for one in reversed(line)})
    return list(shown.values())


def _is_behind(child: Exchange, call: Exchange) -> bool:
    """Whether ``child`` goes on from the answer of ``call``, or from its request where there is no answer."""
    return child.continues is not None or child.restates or not call.is_answered


def _goes_on_alike(call: Exchange, above: _Place) -> bool:
    """Whether the conversation of the call above goes on from the same of its answers as ``call``."""
    return above.goes_on is not None and above.goes_on.continues == call.continues


def _answers(call: Exchange, goes_on: Exchange | None) -> list[tuple[int | None, Message]]:
    """What a call's conversation shows of its answers, each with its number where it is one of several."""
    if goes_on is None:
        answers = call.output if call.is_answered else ()
        return [(number if len(answers) > 1 else None, answer) for number, answer in enumerate(answers)]
    if goes_on.continues is None:  # it says the answer again in its own words, or there is none
        return []
    return [(None, call.output[goes_on.continues])]
