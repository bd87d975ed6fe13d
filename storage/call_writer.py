"""The one writer of calls: what a call continues, and what of it is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from storage import bodies, captures, deltas
from storage.calls import GROWN, Message, Reading
from storage.captures import Capture
from storage.database import Database, Row
from storage.states import CallOutcome
from storage.text import dumps, storable
from storage.types import CallEnd, CallStart, SessionKey

_REMEMBERED_BYTES = 256 * 1024 * 1024
_SESSION_BYTES = 8 * 1024 * 1024
"""Of one session, so that many long ones at once are not read again for every call."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call as the journal holds it, before it is a row."""

    session: SessionKey
    start: CallStart
    end: CallEnd
    request: bytes
    response: bytes
    capture: bytes | None


@dataclass(frozen=True, slots=True)
class _Remembered:
    """A call that a later one of its session may continue."""

    seq: int
    depth: int
    differences: int
    """Bytes of the differences on the way to the last whole copy."""
    messages: tuple[bytes, ...]
    output: bytes
    """As its column holds it."""
    answers: tuple[bytes, ...]
    """The messages of ``output``."""
    tools: bytes
    request: bytes
    prompt_ids: bytes
    sampled: dict[int, bytes]
    """The ids of each choice."""

    @property
    def size(self) -> int:
        return len(self.request) + len(self.prompt_ids) + len(self.output) + sum(map(len, self.sampled.values()))

    def answered(self, messages: tuple[bytes, ...]) -> int | None:
        """Which of its answers ``messages``, which begin with its own, go on from."""
        following = messages[len(self.messages) : len(self.messages) + 1]
        return self.answers.index(following[0]) if following and following[0] in self.answers else None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a call stands in its session."""

    parent: _Remembered | None
    messages: tuple[bytes, ...]
    """The whole conversation, in canonical form; shared with the parent, since a long session repeats it."""
    new: tuple[Message, ...]
    """Those of it that neither the parent nor its answer has."""
    continues: int | None = None
    """Which of the parent's answers comes before them."""


class CallWriter:
    """Writes calls; finds for each the call of its session that it continues.

    ``read_call`` gives what is readable in (start, request, response).
    """

    def __init__(self, db: Database, read_call: Callable[[CallStart, bytes, bytes], Reading]) -> None:
        self._db = db
        self._read_call = read_call
        self._sessions: OrderedDict[SessionKey, list[_Remembered]] = OrderedDict()
        self._remembered = 0

    def forget(self) -> None:
        """After a rollback: what is remembered may not be in the database."""
        self._sessions.clear()
        self._remembered = 0

    def begin_session(self, session: SessionKey) -> None:
        """The session is new: there is nothing of it to be read again."""
        self._sessions[session] = []

    def forget_session(self, session: SessionKey) -> None:
        """The session closed: it is read again where a call opens it once more."""
        self._remembered -= sum(call.size for call in self._sessions.pop(session, ()))

    def write(self, call: RecordedCall) -> None:
        reading = self._read_call(call.start, call.request, call.response)
        capture = captures.read(call.capture)
        place = self._place(call.session, reading)
        parent, continues = place.parent, place.continues
        tools = dumps(reading.tools)
        new_tools = tools if not parent or parent.tools != tools else b""
        shown, output = dumps(place.new), dumps(reading.output)
        size = len(call.request) + len(capture.prompt_ids)
        base = parent if parent and not deltas.is_due(parent.depth, parent.differences, size) else None
        text = bodies.readable(base.output if base else b"", new_tools, shown)
        request = deltas.encode(call.request, base.request if base else None, text)
        prompt_ids = bodies.encode_ids(
            capture.prompt_ids, base.prompt_ids if base else None, base.sampled if base else {}, continues
        )
        sampled = {choice.number: choice.ids for choice in capture.choices}
        depth = base.depth + 1 if base else 0
        seq = self._db.insert(
            "calls",
            **_plain_columns(call, capture),
            parent=parent.seq if parent else None,
            continues=continues,
            input=shown.decode(),
            output=output.decode(),
            tools=new_tools.decode() or None,
            response_id=storable(reading.response_id) if reading.response_id else None,
            token_limit=reading.token_limit or 0,
            depth=depth,
            request=request,
            response=deltas.encode(call.response, None, output),
            prompt_ids=prompt_ids,
        )
        for choice in capture.choices:
            self._db.insert(
                "choices",
                call=seq,
                number=choice.number,
                finish=choice.finish,
                ids=choice.ids,
                logprobs=choice.logprobs,
            )
        remembered = _Remembered(
            seq=seq,
            depth=depth,
            differences=base.differences + len(request) + len(prompt_ids) if base else 0,
            messages=place.messages,
            output=output,
            answers=tuple(_canonical(message) for message in reading.output),
            tools=tools,
            request=call.request,
            prompt_ids=capture.prompt_ids,
            sampled=sampled,
        )
        self._remember(call.session, [remembered])

    def _place(self, session: SessionKey, reading: Reading) -> _Place:
        if session not in self._sessions:
            self._recall(session)
        earlier = self._sessions.get(session, [])
        messages = tuple(map(_canonical, reading.messages))
        if reading.continues and (row := self._issuer(session, reading.continues)):
            return _behind(row, next((call for call in earlier if call.seq == row["seq"]), None), reading)
        if reading.grows and messages:
            parent = _longest(earlier, messages, _grew)
            return _Place(parent, messages, _lengthened(parent, reading.messages) if parent else reading.messages)
        parent = _longest(earlier, messages, _begins)
        if parent is None:
            return _Place(None, messages, reading.messages)
        continues = parent.answered(messages)
        known = len(parent.messages)
        new = reading.messages[known + (continues is not None) :]
        return _Place(parent, parent.messages + messages[known:], new, continues)

    def _issuer(self, session: SessionKey, response_id: str) -> Row | None:
        return self._db.first(
            "SELECT seq, output FROM calls WHERE response_id = ? AND session = ? ORDER BY seq DESC",
            (storable(response_id), session),
        )

    def _remember(self, session: SessionKey, calls: list[_Remembered]) -> None:
        self._sessions.setdefault(session, []).extend(calls)
        self._sessions.move_to_end(session)
        self._remembered += sum(call.size for call in calls)
        while self._remembered > _REMEMBERED_BYTES and len(self._sessions) > 1:
            self.forget_session(next(iter(self._sessions)))
        # Most calls continue one of the last; what continues a call that was forgotten stands on its own.
        kept = self._sessions[session]
        size = sum(call.size for call in kept)
        while size > min(_SESSION_BYTES, _REMEMBERED_BYTES) and len(kept) > 1:
            oldest = kept.pop(0).size
            size -= oldest
            self._remembered -= oldest

    def _recall(self, session: SessionKey) -> None:
        """After a restart, or when a session comes back after a long time."""
        rows = self._db.all("SELECT * FROM calls WHERE session = ? ORDER BY seq", (session,))
        sampled = bodies.sampled(self._db, "session", session)
        built: dict[int, _Remembered] = {}
        for row in rows:
            parent = built.get(row["parent"])
            base = parent if row["depth"] else None
            known = parent.messages if parent else ()
            if parent and row["continues"] is not None:
                known += (parent.answers[row["continues"]],)
            built[row["seq"]] = _Remembered(
                seq=row["seq"],
                depth=row["depth"],
                differences=base.differences + len(row["request"]) + len(row["prompt_ids"]) if base else 0,
                messages=_joined(known, orjson.loads(row["input"])),
                output=row["output"].encode(),
                answers=tuple(_canonical(message) for message in orjson.loads(row["output"])),
                tools=row["tools"].encode() if row["tools"] else (parent.tools if parent else b"[]"),
                request=bodies.decode_request(row, base.output if base else b"", base.request if base else None),
                prompt_ids=bodies.decode_ids(row, base.prompt_ids if base else None, base.sampled if base else {}),
                sampled=sampled.get(row["seq"], {}),
            )
        if built:
            self._remember(session, list(built.values()))


def _plain_columns(call: RecordedCall, capture: Capture) -> dict[str, Any]:
    """What a row says of the call itself, as it came."""
    start, end = call.start, call.end
    return {
        "id": start.id,
        "session": call.session,
        "agent": start.agent,
        "dialect": start.dialect,
        "path": start.path,
        "model": start.model,
        "version": start.version,
        "upstream": start.upstream,
        "streamed": start.streamed,
        "outcome": end.outcome,
        "status": end.status,
        "error": end.error,
        "not_trainable": _not_trainable(end, capture),
        "started_at": start.started_at,
        "first_byte_at": end.first_byte_at,
        "ended_at": end.ended_at,
        "sampling": orjson.dumps(capture.sampling).decode(),
    }


def _behind(row: Row, parent: _Remembered | None, reading: Reading) -> _Place:
    """The place of a call that names the one it continues and repeats nothing of it; ``parent`` as remembered."""
    known = parent.messages if parent else ()
    # The system prompt comes with each request, whatever it continues.
    again = bool(reading.messages) and known[:1] == (_canonical(reading.messages[0]),)
    new = reading.messages[again:]
    if parent and parent.answers:
        return _Place(parent, known + parent.answers[:1] + tuple(map(_canonical, new)), new, 0)
    new = (*orjson.loads(row["output"])[:1], *new)
    return _Place(parent, known + tuple(map(_canonical, new)), new)


_Messages = tuple[bytes, ...]


def _longest(
    calls: list[_Remembered], messages: _Messages, begins: Callable[[_Messages, _Messages], bool]
) -> _Remembered | None:
    """The call with the longest conversation that ``messages`` begin with.

    Of equals one whose answer they go on from; of those the newest.
    """
    best: _Remembered | None = None
    rank = (0, 0, False)
    for call in reversed(calls):
        known = call.messages
        # The newest first: the others are shorter as a rule, and not looked at.
        if known and (len(known), len(known[-1]), True) > rank and begins(known, messages):
            its = (len(known), len(known[-1]), call.answered(messages) is not None)
            if its > rank:
                best, rank = call, its
    return best


def _begins(known: _Messages, messages: _Messages) -> bool:
    return messages[: len(known)] == known


_TEXT_ENDS = b'","role":"user"}'
"""How the canonical form of a plain message ends, behind its text."""


def _grew(known: tuple[bytes, ...], messages: tuple[bytes, ...]) -> bool:
    return len(known) == 1 and messages[0].startswith(known[0].removesuffix(_TEXT_ENDS))


def _lengthened(parent: _Remembered, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The text by which a message grew, marked as what it is."""
    text = messages[0]["content"][len(orjson.loads(parent.messages[0])["content"]) :]
    return ({**messages[0], "content": text, GROWN: True},) if text else ()


def _joined(known: tuple[bytes, ...], new: list[Message]) -> tuple[bytes, ...]:
    """The conversation of a call, from that of its parent and what was recorded as new."""
    text = new[0].get("content") if new and new[0].get(GROWN) is True else None
    if isinstance(text, str) and len(known) == 1 and known[0].endswith(_TEXT_ENDS):
        return (_canonical({"role": "user", "content": orjson.loads(known[0])["content"] + text}),)
    return known + tuple(_canonical(message) for message in new)


def _not_trainable(end: CallEnd, capture: Capture) -> str | None:
    if end.outcome is not CallOutcome.COMPLETE:
        return end.error or f"the call ended as {end.outcome}"
    if capture.reason:
        return capture.reason
    if any(choice.finish in (None, "abort") for choice in capture.choices):
        return "an answer was cut off before its end"
    return None


def _canonical(message: Message) -> bytes:
    return dumps(message, sort_keys=True)
