"""A data folder that is recorded into as the proxy does it, and taken in, abandoned and opened again at will."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from storage import sessions
from storage.calls import Message, Reading
from storage.database import Database
from storage.ingest import Ingestion, ReadCall, Status
from storage.journal import JournalWriter, Kind
from storage.records import Close, pack_close, pack_end, pack_reward, pack_start
from storage.states import CallOutcome, ClosedBy
from storage.types import DEFAULT_OWNER, CallEnd, CallId, CallStart, Identity, Owner, Reward, Session, VersionNumber

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
BEGAN = 1_000_000.0
POISON_TEXT = b"a response over which the reading fails"

_numbers = count(1)


def identity(session: str, owner: str = DEFAULT_OWNER) -> Identity:
    return Identity(Owner(owner), session)


def call_start(session: str = "s", **changes: Any) -> CallStart:
    """The start of a tagged call; each is one second after the one before."""
    number = next(_numbers)
    start = CallStart(
        id=CallId(f"{number:032x}"),
        identity=identity(session),
        scenario="task",
        split="train",
        agent=None,
        dialect="chat",
        path="/v1/chat/completions",
        model="agent",
        version=VersionNumber(0),
        pinned=changes.get("version", VersionNumber(0)),
        upstream="http://vllm",
        streamed=False,
        started_at=BEGAN + number,
    )
    return replace(start, **changes)


def call_end(start: CallStart, outcome: CallOutcome = CallOutcome.COMPLETE) -> CallEnd:
    return CallEnd(outcome, 200, None, start.started_at + 0.1, start.started_at + 0.2)


def capture(prompt: Sequence[int], *choices: Sequence[int], finish: str | None = "stop", **sampling: Any) -> bytes:
    """What the plugin saw: a prompt, each choice's sampled ids (all with the logprob -0.5), how they were drawn."""
    return json.dumps(
        {
            "reason": None,
            "prompts": [list(prompt)],
            "choices": [
                {"index": n, "ids": list(ids), "logprobs": [-0.5] * len(ids), "finish": finish}
                for n, ids in enumerate(choices)
            ],
            "sampling": SAMPLING | sampling,
        }
    ).encode()


def read_call(_: CallStart, request: bytes, response: bytes) -> Reading:
    """A wire form as plain as can be: messages and tools; the answer's messages, or nothing where it is torn."""
    if response == POISON_TEXT:
        raise AttributeError("a dialect with a fault")
    asked = json.loads(request)
    try:
        answer = tuple(json.loads(response))
    except ValueError:
        answer = ()
    return Reading(tuple(asked["messages"]), answer, tuple(asked.get("tools", ())))


@dataclass
class Recorded:
    """Journal, ingestion and a reader's connection on one data folder."""

    folder: Path
    read_call: ReadCall = read_call
    writer: JournalWriter = field(init=False)
    ingestion: Ingestion = field(init=False)
    db: Database = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.db = Database(self.folder)
        after = self.db.number("SELECT segment FROM journal_position")
        self.writer = JournalWriter(self.folder / "journal", after=after)
        self.ingestion = Ingestion(self.folder, self.writer.tail, self.read_call)

    def abandon(self) -> None:
        """As `kill -9` leaves it: nothing is finished, only what the kernel holds is given back."""
        self.writer.close()
        self.ingestion.close()
        self.db.close()

    def restart(self) -> None:
        self.abandon()
        self.open()
        self.ingestion.catch_up()

    @contextmanager
    def running(self, report: Callable[[Status], None] = lambda _: None) -> Iterator[None]:
        """While the ingestion runs, in a thread; at the end it stops."""
        stop = threading.Event()
        thread = threading.Thread(target=self.ingestion.run, args=(stop, report))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def take_in(self) -> None:
        while self.ingestion.run_once():
            assert self.ingestion.problem is None

    def begin(self, start: CallStart, messages: Sequence[Message], tools: Sequence[Any] = ()) -> None:
        self.start(start, json.dumps({"messages": list(messages), "tools": list(tools)}).encode())

    def start(self, start: CallStart, request: bytes) -> None:
        self.writer.append((Kind.START, start.id, pack_start(start), request))

    def piece(self, start: CallStart, data: bytes) -> None:
        self.writer.append((Kind.PIECE, start.id, data))

    def captured(self, start: CallStart, payload: bytes) -> None:
        self.writer.append((Kind.CAPTURE, start.id, payload))

    def finish(self, start: CallStart, outcome: CallOutcome = CallOutcome.COMPLETE) -> None:
        self.writer.append((Kind.END, start.id, pack_end(call_end(start, outcome))))

    def call(self, start: CallStart, text: str, tokens: bytes | None = None) -> CallStart:
        """A whole call: one user message, one answer."""
        return self.turn(start, [{"role": "user", "content": text}], f"answer to {text}", tokens)

    def turn(
        self, start: CallStart, messages: Sequence[Message], answer: str, tokens: bytes | None = None
    ) -> CallStart:
        self.begin(start, messages)
        self.piece(start, json.dumps([{"role": "assistant", "content": answer}]).encode())
        self.captured(start, tokens if tokens is not None else capture([1, 2], [3]))
        self.finish(start)
        return start

    def close(self, session: str, by: ClosedBy = ClosedBy.ENDED, owner: str = DEFAULT_OWNER) -> None:
        at = BEGAN + next(_numbers)
        self.writer.append((Kind.CLOSE, f"{next(_numbers):032x}", pack_close(Close(identity(session, owner), by, at))))

    def reward(self, reward: Reward) -> None:
        self.writer.append((Kind.REWARD, reward.id, pack_reward(reward)))

    def session(self, name: str, episode: int | None = None) -> Session:
        found = sessions.find(self.db, identity(name), episode)
        assert found is not None
        return found

    def outcomes(self) -> dict[str, str]:
        """How each call ended, by its id."""
        return {row["id"]: row["outcome"] for row in self.db.all("SELECT id, outcome FROM calls")}


def a_reward(session: str, value: float, **changes: Any) -> Reward:
    number = next(_numbers)
    reward = Reward(f"{number:032x}", identity(session), None, "reward", "client", value, None, BEGAN + number)
    return replace(reward, **changes)
