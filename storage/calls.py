"""Calls in the database: bodies and token ids as differences to the parent call, the rest in plain columns.

What is readable is written once: ``input`` holds the messages that neither the parent's request nor its answer has, and
``continues`` says which of the parent's answers came before them (NULL: none, as it was given).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import orjson

from storage import bodies, deltas, samplings, tokens
from storage.database import Database, Row
from storage.errors import NotFound
from storage.states import CallOutcome
from storage.text import storable
from storage.types import Call, CallId, Choice, Owner, SessionKey, VersionNumber

Message = dict[str, Any]

GROWN = "continues"
"""Marks a stored message whose text lengthens that of the parent's one message."""


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
    token_limit: int | None = None
    """How many tokens an answer may have, as the request says it; None: it says nothing."""


def supersede(db: Database, call: CallId) -> None:
    """The client left the call and made it again; one that is not in the database is passed over."""
    db.execute(
        "UPDATE calls SET outcome = ?, not_trainable = ? WHERE id = ?",
        (CallOutcome.SUPERSEDED, "superseded: the client left this call and made it again", call),
    )


def issuer(db: Database, response_id: str) -> Owner | None:
    """Who got the response of this name; None where no call that is known has it."""
    row = db.first(
        "SELECT owner FROM calls JOIN sessions ON key = session WHERE response_id = ? ORDER BY seq DESC LIMIT 1",
        (storable(response_id),),
    )
    return Owner(row["owner"]) if row is not None else None


def body(db: Database, seq: int, column: str = "request") -> bytes:
    """The bytes of call ``seq``, decoded: its ``request``, its ``response``, or ``prompt_ids`` (the ids as int32).

    Raises `NotFound` when there is no such call.
    """
    chain: list[Row] = []
    at: int | None = seq
    while at is not None:
        row = db.first(
            f"SELECT seq, parent, continues, depth, input, output, tools, {column} FROM calls WHERE seq = ?", (at,)
        )
        if row is None:
            raise NotFound(f"there is no call number {at}")
        chain.append(row)
        at = row["parent"] if row["depth"] and column != "response" else None
    if column == "response":
        return deltas.decode(chain[0]["response"], None, chain[0]["output"].encode())
    data: bytes | None = None
    before: Row | None = None
    for row in reversed(chain):
        if column == "request":
            data = bodies.decode_request(row, before["output"].encode() if before else b"", data)
        else:
            sampled = bodies.sampled(db, "seq", before["seq"])[before["seq"]] if before else {}
            data = bodies.decode_ids(row, data, sampled)
        before = row
    return data or b""


def path(db: Database, call: CallId, choice: int) -> array[int] | None:
    """What the model saw and said: the ids of a call's prompt, and those of one of its choices behind them.

    None when it is not there: its session was deleted.
    """
    row = db.first("SELECT seq, ids FROM calls JOIN choices ON call = seq WHERE id = ? AND number = ?", (call, choice))
    if row is None:
        return None
    try:
        return tokens.ids_in(body(db, row["seq"], "prompt_ids") + row["ids"])
    except NotFound:  # deleted just now
        return None


_READ = """seq, id, parent, continues, depth, agent, version, outcome, status, not_trainable, started_at, sampling,
    token_limit, prompt_ids, parent IS NOT NULL AND continues IS NULL
    AND json_extract(input, '$[0].role') IS 'assistant' AS restates"""


def of_session(db: Database, session: SessionKey) -> list[Call]:
    """The session's calls, in the order in which they ended."""
    # The calls first: each was written together with its choices, so that none is met without them.
    found = db.all(f"SELECT {_READ} FROM calls WHERE session = ? ORDER BY seq", (session,))
    choices: dict[int, list[Choice]] = {}
    sampled: dict[int, dict[int, bytes]] = defaultdict(dict)
    for row in db.all(
        "SELECT choices.* FROM choices JOIN calls ON seq = call WHERE session = ? ORDER BY call, number",
        (session,),
    ):
        ids = tokens.ids_in(row["ids"])
        logprobs = tokens.logprobs_in(row["logprobs"])
        choices.setdefault(row["call"], []).append(Choice(row["number"], ids, logprobs, row["finish"]))
        sampled[row["call"]][row["number"]] = row["ids"]
    prompts: dict[int, bytes] = {}
    calls = []
    for row in found:
        base = prompts[row["parent"]] if row["depth"] else None
        prompts[row["seq"]] = bodies.decode_ids(row, base, sampled[row["parent"]])
        calls.append(_call(row, prompts[row["seq"]], tuple(choices.get(row["seq"], ()))))
    return calls


def _call(row: Row, prompt_ids: bytes, choices: tuple[Choice, ...]) -> Call:
    return Call(
        seq=row["seq"],
        id=CallId(row["id"]),
        agent=row["agent"],
        version=VersionNumber(row["version"]),
        outcome=CallOutcome(row["outcome"]),
        status=row["status"],
        not_trainable=row["not_trainable"],
        started_at=row["started_at"],
        sampling=orjson.loads(row["sampling"]) or {},
        token_limit=row["token_limit"],
        parent=row["parent"],
        continues=row["continues"],
        restates=bool(row["restates"]),
        prompt_ids=tokens.ids_in(prompt_ids),
        choices=choices,
    )


def transcript(db: Database, seq: int) -> tuple[list[Message], list[Any]]:
    """The conversation up to and with the answer of call ``seq``, and the tools that were offered in it."""
    columns = "SELECT parent, continues, input, output, tools FROM calls WHERE seq = ?"
    row = db.first(columns, (seq,))
    if row is None:
        raise NotFound(f"there is no call number {seq}")
    parts: list[list[Message]] = [orjson.loads(row["output"])[:1]]
    tools: list[Any] | None = None
    while row is not None:
        parts.append(orjson.loads(row["input"]))
        if row["tools"] and tools is None:
            tools = orjson.loads(row["tools"])
        continues = row["continues"]
        row = db.first(columns, (row["parent"],))
        if row is not None and continues is not None:
            parts.append([orjson.loads(row["output"])[continues]])
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
        values["recomputed"] = None if row["not_trainable"] else samplings.why_recomputed(values["sampling"])
        decoded.append(values)
    return decoded
