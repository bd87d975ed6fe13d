"""Calls in the database: bodies and token ids as differences to the parent call, the rest in plain columns."""

from __future__ import annotations

import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from storage import deltas
from storage.database import Database, Row
from storage.errors import NotFound
from storage.states import CallOutcome
from storage.text import dumps
from storage.types import Call, CallEnd, CallId, CallStart, Choice, SessionKey, VersionNumber

Message = dict[str, Any]

_REMEMBERED_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """What a person, a judge or the next call's parent search reads in a call."""

    messages: tuple[Message, ...]
    """The request's conversation, in order, as chat messages."""
    output: tuple[Message, ...]
    """One answer for each choice."""
    tools: tuple[Any, ...] = ()
    response_id: str | None = None
    """The name by which later requests may continue this call."""
    continues: str | None = None
    """The `response_id` of the call whose conversation comes before ``messages``, which then hold only what is new."""
    grows: bool = False
    """The one message is a text that later calls lengthen, the answers in it."""


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
    tools: bytes
    request: bytes
    prompt_ids: bytes

    @property
    def size(self) -> int:
        return len(self.request) + len(self.prompt_ids)


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

    def forget_session(self, session: SessionKey) -> None:
        """The session closed: it is read again where a call opens it once more."""
        self._remembered -= sum(call.size for call in self._sessions.pop(session, ()))

    def write(self, call: RecordedCall) -> None:
        start, end = call.start, call.end
        reading = self._read_call(start, call.request, call.response)
        capture = _Capture.read(call.capture)
        parent, messages, new = self._place(call.session, reading)
        tools = dumps(reading.tools)
        size = len(call.request) + len(capture.prompt_ids)
        base = parent if parent and not deltas.is_due(parent.depth, parent.differences, size) else None
        request = deltas.encode(call.request, base.request if base else None)
        prompt_ids = deltas.encode(capture.prompt_ids, base.prompt_ids if base else None)
        depth = base.depth + 1 if base else 0
        differences = base.differences + len(request) + len(prompt_ids) if base else 0
        seq = self._db.insert(
            "calls",
            id=start.id,
            session=call.session,
            parent=parent.seq if parent else None,
            agent=start.agent,
            dialect=start.dialect,
            path=start.path,
            model=start.model,
            version=start.version,
            upstream=start.upstream,
            streamed=start.streamed,
            outcome=end.outcome,
            status=end.status,
            error=end.error,
            not_trainable=_not_trainable(end, capture),
            started_at=start.started_at,
            first_byte_at=end.first_byte_at,
            ended_at=end.ended_at,
            sampling=orjson.dumps(capture.sampling).decode(),
            input=_json(new),
            output=_json(reading.output),
            tools=tools.decode() if not parent or parent.tools != tools else None,
            response_id=reading.response_id,
            depth=depth,
            request=request,
            response=call.response,
            prompt_ids=prompt_ids,
        )
        for choice in capture.choices:
            self._db.insert(
                "choices",
                call=seq,
                number=choice.index,
                finish=choice.finish,
                ids=_ints(choice.ids),
                logprobs=array.array("f", choice.logprobs).tobytes(),
            )
        remembered = _Remembered(seq, depth, differences, messages, tools, call.request, capture.prompt_ids)
        self._remember(call.session, [remembered])

    def _place(
        self, session: SessionKey, reading: Reading
    ) -> tuple[_Remembered | None, tuple[bytes, ...], Sequence[Message]]:
        """The call that this one continues, the whole conversation in canonical form, and what is new in it."""
        if session not in self._sessions:
            self._recall(session)
        earlier = self._sessions.get(session, [])
        messages = tuple(_canonical(message) for message in reading.messages)
        if reading.continues and (row := self._issuer(session, reading.continues)):
            parent = next((call for call in earlier if call.seq == row["seq"]), None)
            known = parent.messages if parent else ()
            # The system prompt comes with each request, whatever it continues.
            again = bool(messages) and messages[:1] == known[:1]
            new = [*orjson.loads(row["output"])[:1], *reading.messages[again:]]
            return parent, known + tuple(map(_canonical, new)), new
        if reading.grows and messages:
            parent = _longest(earlier, lambda known: _grew(known, messages))
            return parent, messages, _lengthened(parent, reading.messages) if parent else reading.messages
        parent = _longest(earlier, lambda known: messages[: len(known)] == known)
        known = parent.messages if parent else ()
        # Shared with the parent, since a long session repeats them in every call.
        return parent, known + messages[len(known) :], reading.messages[len(known) :]

    def _issuer(self, session: SessionKey, response_id: str) -> Row | None:
        return self._db.first(
            "SELECT seq, output FROM calls WHERE response_id = ? AND session = ? ORDER BY seq DESC",
            (response_id, session),
        )

    def _remember(self, session: SessionKey, calls: list[_Remembered]) -> None:
        self._sessions.setdefault(session, []).extend(calls)
        self._sessions.move_to_end(session)
        self._remembered += sum(call.size for call in calls)
        while self._remembered > _REMEMBERED_BYTES and len(self._sessions) > 1:
            self.forget_session(next(iter(self._sessions)))
        # One session alone may be larger; what continues a call that was forgotten stands on its own.
        kept = self._sessions[session]
        while self._remembered > _REMEMBERED_BYTES and len(kept) > 1:
            self._remembered -= kept.pop(0).size

    def _recall(self, session: SessionKey) -> None:
        """After a restart, or when a session comes back after a long time."""
        rows = self._db.all("SELECT * FROM calls WHERE session = ? ORDER BY seq", (session,))
        built: dict[int, _Remembered] = {}
        for row in rows:
            parent = built.get(row["parent"])
            base = parent if row["depth"] else None
            known = parent.messages if parent else ()
            differences = base.differences + len(row["request"]) + len(row["prompt_ids"]) if base else 0
            built[row["seq"]] = _Remembered(
                seq=row["seq"],
                depth=row["depth"],
                differences=differences,
                messages=_joined(known, orjson.loads(row["input"])),
                tools=row["tools"].encode() if row["tools"] else (parent.tools if parent else b"[]"),
                request=deltas.decode(row["request"], base.request if base else None),
                prompt_ids=deltas.decode(row["prompt_ids"], base.prompt_ids if base else None),
            )
        if built:
            self._remember(session, list(built.values()))


@dataclass(frozen=True, slots=True)
class _Capture:
    """What the plugin saw of a call (docs/architecture.md, "Capture")."""

    reason: str | None
    prompt_ids: bytes = b""
    choices: tuple[Choice, ...] = ()
    sampling: dict[str, Any] | None = None

    @classmethod
    def read(cls, payload: bytes | None) -> _Capture:
        if payload is None:
            return cls("no tokens were captured")
        data = orjson.loads(payload)
        choices = tuple(Choice(c["index"], tuple(c["ids"]), tuple(c["logprobs"]), c["finish"]) for c in data["choices"])
        reason = data["reason"]
        if reason is None and len(data["prompts"]) != 1:
            reason = f"{len(data['prompts'])} prompts in one call"
        if reason is None and any(len(c.ids) != len(c.logprobs) for c in choices):
            reason = "the numbers of sampled tokens and of logprobs differ"
        prompt_ids = _ints(data["prompts"][0]) if data["prompts"] else b""
        return cls(reason, prompt_ids, choices, data["sampling"])


def _not_trainable(end: CallEnd, capture: _Capture) -> str | None:
    if end.outcome is not CallOutcome.COMPLETE:
        return end.error or f"the call ended as {end.outcome}"
    if capture.reason:
        return capture.reason
    if any(choice.finish in (None, "abort") for choice in capture.choices):
        return "an answer was cut off before its end"
    return None


def supersede(db: Database, call: CallId) -> None:
    """The client left the call and made it again; one that is not in the database is passed over."""
    db.execute(
        "UPDATE calls SET outcome = ?, not_trainable = ? WHERE id = ?",
        (CallOutcome.SUPERSEDED, "superseded: the client left this call and made it again", call),
    )


def body(db: Database, seq: int, column: str = "request") -> bytes:
    """The request's bytes (or, with ``prompt_ids``, the ids as int32) of call ``seq``, decoded.

    Raises `NotFound` when there is no such call.
    """
    chain: list[bytes] = []
    at: int | None = seq
    while at is not None:
        row = db.first(f"SELECT parent, depth, {column} AS blob FROM calls WHERE seq = ?", (at,))
        if row is None:
            raise NotFound(f"there is no call number {at}")
        chain.append(row["blob"])
        at = row["parent"] if row["depth"] else None
    data: bytes | None = None
    for blob in reversed(chain):
        data = deltas.decode(blob, data)
    return data or b""


def of_session(db: Database, session: SessionKey) -> list[Call]:
    """The session's calls, in the order in which they ended."""
    # The calls first: each was written together with its choices, so that none is met without them.
    found = db.all("SELECT * FROM calls WHERE session = ? ORDER BY seq", (session,))
    choices: dict[int, list[Choice]] = {}
    for row in db.all(
        "SELECT choices.* FROM choices JOIN calls ON seq = call WHERE session = ? ORDER BY call, number",
        (session,),
    ):
        ids = tuple(array.array("i", row["ids"]))
        logprobs = tuple(array.array("f", row["logprobs"]))
        choices.setdefault(row["call"], []).append(Choice(row["number"], ids, logprobs, row["finish"]))
    prompts: dict[int, bytes] = {}
    calls = []
    for row in found:
        base = prompts[row["parent"]] if row["depth"] else None
        prompts[row["seq"]] = deltas.decode(row["prompt_ids"], base)
        calls.append(_call(row, prompts[row["seq"]], tuple(choices.get(row["seq"], ()))))
    return calls


def _call(row: Row, prompt_ids: bytes, choices: tuple[Choice, ...]) -> Call:
    return Call(
        seq=row["seq"],
        id=CallId(row["id"]),
        version=VersionNumber(row["version"]),
        outcome=CallOutcome(row["outcome"]),
        not_trainable=row["not_trainable"],
        started_at=row["started_at"],
        sampling=orjson.loads(row["sampling"]) or {},
        prompt_ids=tuple(array.array("i", prompt_ids)),
        choices=choices,
    )


def transcript(db: Database, seq: int) -> tuple[list[Message], list[Any]]:
    """The conversation up to and with the answer of call ``seq``, and the tools that were offered in it."""
    parts: list[list[Message]] = []
    tools: list[Any] | None = None
    row = db.first("SELECT parent, input, output, tools FROM calls WHERE seq = ?", (seq,))
    if row is None:
        raise NotFound(f"there is no call number {seq}")
    parts.append(orjson.loads(row["output"])[:1])
    while row is not None:
        parts.append(orjson.loads(row["input"]))
        if row["tools"] and tools is None:
            tools = orjson.loads(row["tools"])
        row = db.first("SELECT parent, input, output, tools FROM calls WHERE seq = ?", (row["parent"],))
    return [message for part in reversed(parts) for message in part], tools or []


def rows(db: Database, session: SessionKey) -> list[dict[str, Any]]:
    """The session's calls as the admin API shows them: readable, without bytes and ids."""
    found = db.all(
        "SELECT id, agent, dialect, path, model, version, upstream, streamed, outcome, status, error, not_trainable,"
        " started_at, first_byte_at, ended_at, sampling, input, output,"
        " (SELECT sum(length(ids)) / 4 FROM choices WHERE call = seq) AS sampled_tokens"
        " FROM calls WHERE session = ? ORDER BY seq",
        (session,),
    )
    decoded = []
    for row in found:
        values = dict(row)
        for column in ("sampling", "input", "output"):
            values[column] = orjson.loads(values[column])
        values["streamed"] = bool(values["streamed"])
        decoded.append(values)
    return decoded


def _longest(calls: list[_Remembered], begins: Callable[[tuple[bytes, ...]], bool]) -> _Remembered | None:
    """The call with the longest conversation of those that ``begins`` accepts; of equals the newest."""
    best: _Remembered | None = None
    for call in calls:
        known = call.messages
        if known and (best is None or _size(known) >= _size(best.messages)) and begins(known):
            best = call
    return best


def _size(messages: tuple[bytes, ...]) -> tuple[int, int]:
    return len(messages), len(messages[-1])


_TEXT_ENDS = b'","role":"user"}'
"""How the canonical form of a plain message ends, behind its text."""


def _grew(known: tuple[bytes, ...], messages: tuple[bytes, ...]) -> bool:
    return len(known) == 1 and messages[0].startswith(known[0].removesuffix(_TEXT_ENDS))


def _lengthened(parent: _Remembered, messages: tuple[Message, ...]) -> list[Message]:
    """The text by which a message grew, marked as what it is."""
    text = messages[0]["content"][len(orjson.loads(parent.messages[0])["content"]) :]
    return [{**messages[0], "content": text, _GROWN: True}] if text else []


_GROWN = "continues"
"""Marks a stored message whose text lengthens that of the message before it."""


def _joined(known: tuple[bytes, ...], new: list[Message]) -> tuple[bytes, ...]:
    """The conversation of a call, from that of its parent and what was recorded as new."""
    text = new[0].get("content") if new and new[0].get(_GROWN) is True else None
    if isinstance(text, str) and len(known) == 1 and known[0].endswith(_TEXT_ENDS):
        return (_canonical({"role": "user", "content": orjson.loads(known[0])["content"] + text}),)
    return known + tuple(_canonical(message) for message in new)


def _canonical(message: Message) -> bytes:
    return dumps(message, sort_keys=True)


def _json(value: Any) -> str:
    return dumps(value).decode()


def _ints(ids: Any) -> bytes:
    return array.array("i", ids).tobytes()
