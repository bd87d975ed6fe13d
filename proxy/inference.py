"""Sessions of calls that name none: which earlier call a call continues.

A call continues another when it names the other's response, when its messages begin with the other's messages and
answer, or when it brings the result of a tool call that was made there. An answer that no call has continued yet is
*open*. Where several sessions have the same open answer, nobody can tell whose continuation comes: all of them are
ambiguous, and never trained on. Where there is nothing to go by, a new session begins.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.asgi import Scope
from proxy.conversations import Conversation, GrowingText, named
from proxy.dialects import Continued, Dialect, Issued, is_stream
from proxy.recollection import recollect
from proxy.scenarios import Scenarios
from proxy.tags import Tags
from storage import exchanges, sessions
from storage.calls import Message, Reading
from storage.database import Database
from storage.exchanges import Exchange
from storage.types import Identity, Owner, Session, TaggedBy, new_id

_log = logging.getLogger("slipstream.inference")

_ANSWERS = 16
"""How many answers of a session can be continued: the newest."""
_NAMES = 50_000
"""Names of answers that are remembered, all sessions together: about 20 MB."""
_ALIKE = 64
"""How many answers of one name are remembered: the newest."""
_TOOL_CALLS = 64
"""How many of the tool calls that a request brings results of are looked up: the newest."""

_RESTORED = 1000
"""How many of the sessions that are open at a start can be continued: those used last."""

Address = tuple[str, int] | None


@dataclass(slots=True, eq=False)
class Known:
    """A session that was inferred."""

    identity: Identity
    scenario: str | None
    scenario_by: TaggedBy
    split: str
    agent: str | None
    ambiguous: bool = False
    last_used: float = 0.0
    address: Address = None
    """The connection that it was last used on."""
    answers: deque[Answer] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class Answer:
    """What a call of a session answered."""

    session: Known
    names: tuple[bytes, ...]
    continued: int = 0
    """By so many calls, those under way among them."""


@dataclass(slots=True, eq=False)
class Turn:
    """A call under way in an inferred session."""

    session: Known
    dialect: Dialect
    conversation: Conversation | GrowingText
    continues: list[Answer]


@dataclass(frozen=True, slots=True)
class _Found:
    answers: list[Answer]
    by_tool_calls: bool = False
    """Not by all that was said before."""


@dataclass(frozen=True, slots=True)
class _Choice:
    session: Known | None
    """None: a new one."""
    continues: list[Answer]
    in_doubt: bool = False
    """The new session may be the rest of another one."""
    equals: set[Known] = field(default_factory=set)
    """The sessions that the call would continue just as well, with the chosen one."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """Whose call it is: what its tags say, and what was inferred where they say nothing."""

    session_id: str
    session_by: TaggedBy
    scenario: str | None
    scenario_by: TaggedBy
    ambiguous: tuple[str, ...] = ()
    """Sessions of which nobody can tell whether this call continues them."""
    turn: Turn | None = None
    """None: there is nothing to learn from the answer."""


class Inference:
    """Knows the sessions that were inferred. For the event loop alone.

    ``has_ended`` says whether a session was ended: then nothing continues it. One that was not used for ``idle``
    seconds is continued only where no other can be.
    """

    def __init__(self, has_ended: Callable[[Identity], bool], idle: float) -> None:
        self._has_ended = has_ended
        self._idle = idle
        self._scenarios = Scenarios()
        self._sessions: OrderedDict[Identity, Known] = OrderedDict()
        """Those with answers, the longest unused first."""
        self._answers: dict[bytes, list[Answer]] = {}
        """By name."""
        self._lengths: OrderedDict[int, None] = OrderedDict()
        """Of the texts that prompts may lengthen."""

    def find(self, owner: Owner, scope: Scope, dialect: Dialect | None, tags: Tags, document: Any) -> Inferred:
        """Whose call it is; ``document`` is its parsed body. `learn` must follow.

        ``dialect`` None: a call of a kind that has no conversation.
        """
        if dialect is None or (tags.session is not None and tags.scenario is not None):
            session_id = tags.session or f"untagged-{new_id()}"
            return Inferred(session_id, tags.session_by, tags.scenario, tags.scenario_by)
        reading = dialect.asked(document)
        if tags.session is not None:
            return Inferred(tags.session, tags.session_by, self._scenarios.of(reading), TaggedBy.INFERRED)
        continued = dialect.continued(document)
        conversation = self._conversation(owner, reading)
        choice = self._choose(self._found(owner, conversation, continued), tags, scope["client"])
        session = choice.session
        if session is None:
            scenario = tags.scenario or self._scenarios.of(reading)
            by = TaggedBy.INFERRED if tags.scenario is None else tags.scenario_by
            identity = Identity(owner, f"auto-{new_id()}")
            session = Known(identity, scenario, by, tags.split, tags.agent, ambiguous=choice.in_doubt)
        for answer in choice.continues:
            answer.continued += 1
        self._use(session, tags, scope["client"])
        ambiguous = {one.identity.session_id for one in (session, *choice.equals) if one.ambiguous}
        return Inferred(
            session_id=session.identity.session_id,
            session_by=TaggedBy.INFERRED,
            scenario=session.scenario,
            scenario_by=session.scenario_by,
            ambiguous=tuple(sorted(ambiguous)),
            turn=Turn(session, dialect, conversation, choice.continues),
        )

    def learn(self, inferred: Inferred, response: bytes | None, *, delivered: bool = True) -> None:
        """The call ended. ``response`` is the whole of it; None: it did not come to its end.

        Not surely ``delivered``, the agent may go on from it or make the call again.

        To be called before the event loop does anything else once the last bytes have left: the next call of the
        session may come at once.
        """
        turn = inferred.turn
        if turn is None:
            return
        turn.session.last_used = time.time()
        if response is None or not delivered:
            for answer in turn.continues:
                answer.continued -= 1
        if response is not None:
            streamed = is_stream(response)
            output = turn.dialect.read(b"", response, streamed).output
            self._remember(turn.session, turn.conversation, output, turn.dialect.issued(response, streamed))

    def restore(self, db: Database) -> None:
        """An earlier process's open sessions, by their newest calls; those that are known here stay as they are."""
        inferred = [session for session in sessions.opened(db) if session.session_by is TaggedBy.INFERRED]
        for session in sorted(inferred, key=lambda session: session.last_call_at)[-_RESTORED:]:
            known = _known(session)
            if known.identity in self._sessions:
                continue
            try:
                self._restore(known, exchanges.of_session(db, session.key))
            except Exception:  # noqa: BLE001 - whatever is wrong with one record, agents are served
                _log.exception("session %s cannot be continued without tags", session.session_id)

    def _restore(self, known: Known, calls: list[Exchange]) -> None:
        owner = known.identity.owner
        for call in recollect(owner, calls, _ANSWERS, self._lengths):
            for answer in self._found(owner, call.conversation, call.continued).answers:
                answer.continued += answer.session is known
            self._remember(known, call.conversation, call.output, call.issued)

    def _use(self, session: Known, tags: Tags, address: Address) -> None:
        session.last_used = time.time()
        session.address = address
        session.agent = tags.agent or session.agent
        if tags.split == "eval":
            session.split = "eval"
        if tags.scenario is not None:
            session.scenario, session.scenario_by = tags.scenario, tags.scenario_by
        if session.identity in self._sessions:
            self._sessions.move_to_end(session.identity)

    def _may(self, session: Known, tags: Tags) -> bool:
        """Whether nothing that the agent said keeps the call from continuing the session."""
        if self._has_ended(session.identity):
            return False
        given = session.scenario_by is not TaggedBy.INFERRED
        return not (given and tags.scenario is not None and tags.scenario != session.scenario)

    def _conversation(self, owner: Owner, reading: Reading) -> Conversation | GrowingText:
        if reading.grows and reading.messages:
            return GrowingText(owner, str(reading.messages[0].get("content")), self._lengths)
        return Conversation(owner, reading.messages, reading.continues)

    def _found(self, owner: Owner, conversation: Conversation | GrowingText, continued: Continued) -> _Found:
        """The answers that a call may continue, by the best sign that there is."""
        response = continued.previous_response_id
        if response is not None and (found := self._answers.get(named(owner, "response", response))):
            return _Found(found)
        for digest in reversed(conversation.answers):
            if found := self._answers.get(digest):
                return _Found(found)
        # After a compaction no history is left to compare.
        names = [named(owner, "call", name) for name in continued.tool_call_ids[-_TOOL_CALLS:]]
        return _Found([answer for name in names for answer in self._answers.get(name, ())], by_tool_calls=True)

    def _choose(self, found: _Found, tags: Tags, address: Address) -> _Choice:
        fitting = [answer for answer in found.answers if self._may(answer.session, tags)]
        sessions = {answer.session for answer in fitting}
        if len(sessions) < 2:
            return _Choice(next(iter(sessions), None), fitting)
        # The ids of tool calls repeat on some servers: those that several sessions know say nothing.
        waiting = set() if found.by_tool_calls else self._waiting(fitting, tags)
        if not waiting:
            return _Choice(None, [], in_doubt=True)
        if len(waiting) > 1:
            for session in waiting:
                session.ambiguous = True
        chosen = max(waiting, key=lambda session: (session.address == address, session.last_used))
        return _Choice(chosen, [answer for answer in fitting if answer.session is chosen], equals=waiting)

    def _waiting(self, fitting: list[Answer], tags: Tags) -> set[Known]:
        """The sessions whose answer is open. What agents say of themselves tells apart those that are alike."""
        since = time.time() - self._idle
        waiting = {a.session for a in fitting if not a.continued and a.session.last_used >= since}
        for same in (
            {session for session in waiting if tags.split == "eval" == session.split},
            {session for session in waiting if tags.agent is not None and tags.agent == session.agent},
        ):
            waiting = same & waiting or waiting
        return waiting

    def _remember(
        self, session: Known, conversation: Conversation | GrowingText, output: Sequence[Message], issued: Issued
    ) -> None:
        """A call of the session was answered."""
        owner = session.identity.owner
        names = [conversation.then(answer) for answer in output]
        names += [named(owner, "call", name) for name in issued.tool_call_ids]
        if issued.response_id:
            names.append(named(owner, "response", issued.response_id))
        answer = Answer(session, tuple(dict.fromkeys(name for name in names if name is not None)))
        if not answer.names:
            return
        for name in answer.names:
            same = self._answers.setdefault(name, [])
            same.append(answer)
            del same[:-_ALIKE]
        session.answers.append(answer)
        self._sessions[session.identity] = session
        self._sessions.move_to_end(session.identity)
        if len(session.answers) > _ANSWERS:
            self._drop(session.answers.popleft())
        while len(self._answers) > _NAMES and len(self._sessions) > 1:
            self._forget(next(iter(self._sessions.values())))

    def _forget(self, session: Known) -> None:
        del self._sessions[session.identity]
        for answer in session.answers:
            self._drop(answer)
        session.answers.clear()

    def _drop(self, answer: Answer) -> None:
        for name in answer.names:
            same = self._answers.get(name, [])
            if answer in same:
                same.remove(answer)
            if not same:
                self._answers.pop(name, None)


def _known(session: Session) -> Known:
    """An open session as the database has it."""
    return Known(
        identity=Identity(session.owner, session.session_id),
        scenario=session.scenario,
        scenario_by=session.scenario_by,
        split=session.split,
        agent=None,
        ambiguous=session.reason == sessions.AMBIGUOUS,
        last_used=session.last_call_at,
    )
