"""A session costs what is new in it: at most twice its content, whatever it is written in."""

from __future__ import annotations

import array
import json
from pathlib import Path

import pytest

from proxy.dialects import read_call
from storage import calls
from storage.call_writer import CallWriter
from storage.database import Database
from storage.journal import Kind
from storage.records import pack_end, pack_start
from tests.storage.recorded import Recorded, call_end, call_start, capture
from tests.storage.turns import PATHS, Agent, Turn


def record(recorded: Recorded, agent: Agent, turns: list[Turn], again: int = 10**9) -> None:
    """With ``again`` the program starts anew after so many calls, and remembers nothing."""
    recorded.ingestion._calls = CallWriter(recorded.ingestion._db, read_call)
    for number, turn in enumerate(turns):
        if number % again == again - 1:
            recorded.take_in()
            recorded.ingestion._calls.forget()
        start = call_start("s", dialect=agent.dialect, path=PATHS[agent.dialect], streamed=agent.streamed)
        recorded.writer.append((Kind.START, start.id, pack_start(start), turn.request))
        recorded.piece(start, turn.response)
        recorded.captured(start, capture(turn.prompt_ids, turn.sampled))
        recorded.writer.append((Kind.END, start.id, pack_end(call_end(start))))
    recorded.take_in()


def database_bytes(folder: Path) -> int:
    """The whole file, its indexes and empty pages with it, once the WAL is in it."""
    db = Database(folder, checkpoints=True)
    db.first("PRAGMA wal_checkpoint(TRUNCATE)")
    size = db.path.stat().st_size
    db.close()
    return size


@pytest.mark.parametrize("again", [10**9, 3], ids=["one process", "three calls a process"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("dialect", PATHS)
def test_fifty_turns_cost_at_most_twice_their_content(
    recorded: Recorded, dialect: str, streamed: bool, again: int
) -> None:
    agent = Agent(dialect, streamed)
    turns = list(agent.turns(50))
    empty = database_bytes(recorded.folder)
    record(recorded, agent, turns, again)
    seqs = [row["seq"] for row in recorded.db.all("SELECT seq FROM calls ORDER BY seq")]
    for seq, turn in zip(seqs, turns, strict=True):
        assert calls.body(recorded.db, seq) == turn.request
        assert calls.body(recorded.db, seq, "response") == turn.response
        assert array.array("i", calls.body(recorded.db, seq, "prompt_ids")).tolist() == turn.prompt_ids
    found = calls.of_session(recorded.db, recorded.session("s").key)
    assert [(list(c.prompt_ids), list(c.choices[0].ids)) for c in found] == [(t.prompt_ids, t.sampled) for t in turns]
    # What is said, the ids of all tokens, and the logprobs of those that were sampled. Nothing of how frames wrap it.
    ids = len(turns[-1].prompt_ids) + len(turns[-1].sampled)
    content = sum(turn.new for turn in turns) + 4 * ids + 4 * sum(len(turn.sampled) for turn in turns)
    kept = database_bytes(recorded.folder) - empty
    assert kept <= 2 * content
    messages, _ = calls.transcript(recorded.db, seqs[-1])
    said = "".join(m["content"] for m in messages if m["role"] == "assistant" or dialect == "completions")
    if dialect == "completions":  # one text, with the answers in it
        assert said == json.loads(turns[-1].request)["prompt"] + turns[-1].answer
    else:
        assert said == "".join(turn.answer for turn in turns)
