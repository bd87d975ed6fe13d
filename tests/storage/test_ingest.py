"""From the journal into the database: everything once, in order, whatever happens in between."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pysqlite3 as sqlite3
import pytest

from storage import calls, coordination, ingest, journal, upkeep
from storage.database import Database
from storage.journal import Kind, segments
from storage.states import ClosedBy, SessionState
from storage.types import TaggedBy
from tests.storage.recorded import POISON_TEXT, Recorded, a_reward, call_start, capture


def refused(recorded: Recorded) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (recorded.folder / "journal" / "refused").iterdir()}


def test_a_call_in_pieces_is_one_row(recorded: Recorded) -> None:
    start = call_start("s", agent="planner", streamed=True)
    recorded.begin(start, [{"role": "user", "content": "hello"}])
    recorded.take_in()
    recorded.piece(start, b'[{"role":"assist')
    recorded.take_in()
    recorded.piece(start, b'ant","content":"hi"}]')
    recorded.captured(start, capture([5, 6], [7, 8]))
    assert recorded.outcomes() == {}
    recorded.finish(start)
    recorded.take_in()
    session = recorded.session("s")
    (call,) = calls.of_session(recorded.db, session.key)
    assert (call.id, list(call.prompt_ids), call.not_trainable) == (start.id, [5, 6], None)
    assert [(c.index, list(c.ids), list(c.logprobs), c.finish) for c in call.choices] == [
        (0, [7, 8], [-0.5, -0.5], "stop")
    ]
    assert call.sampling["temperature"] == 1.0
    assert (
        calls.body(recorded.db, call.seq, "request")
        == b'{"messages": [{"role": "user", "content": "hello"}], "tools": []}'
    )
    assert (session.state, session.calls, session.scenario) == (SessionState.OPEN, 1, "task")
    assert session.last_call_at == start.started_at + 0.2
    (row,) = calls.rows(recorded.db, session.key)
    assert row["output"] == [{"role": "assistant", "content": "hi"}]
    assert (row["streamed"], row["sampled_tokens"], row["outcome"], row["agent"]) == (True, 2, "complete", "planner")


def _a_life(recorded: Recorded) -> None:
    """Two sessions in turns, a call that is never ended, rewards and a close: 24 records."""
    first, second, third, lost = call_start("a"), call_start("b"), call_start("a"), call_start("c")
    question = [{"role": "user", "content": "one"}]
    recorded.begin(first, question)
    recorded.begin(second, question)
    recorded.piece(first, b'[{"role":')
    recorded.reward(a_reward("a", 0.25))
    recorded.begin(lost, question)
    recorded.piece(second, b"[]")
    recorded.piece(first, b'"assistant"}]')
    recorded.captured(second, capture([1], [2]))
    recorded.captured(first, capture([1], [3]))
    recorded.finish(first)
    recorded.piece(lost, b"[half")
    recorded.begin(third, [*question, {"role": "assistant"}, {"role": "user", "content": "two"}])
    recorded.finish(second)
    recorded.piece(third, b"[]")
    recorded.close("b")
    recorded.captured(third, capture([1, 3, 4], [5]))
    recorded.finish(third)
    recorded.reward(a_reward("b", 0.75))
    recorded.close("a", ClosedBy.IDLE)


def _contents(recorded: Recorded) -> dict[str, Any]:
    """All that a life leaves, without ids and times."""
    table = recorded.db.all
    return {
        "calls": [
            (*row[:2], calls.body(recorded.db, row[2], "response"), *row[3:])
            for row in table(
                "SELECT session_id, outcome, seq, calls.parent IS NOT NULL,"
                " (SELECT group_concat(hex(ids)) FROM choices WHERE call = seq)"
                " FROM calls JOIN sessions ON key = session ORDER BY calls.id"
            )
        ],
        "sessions": [
            tuple(row) for row in table("SELECT session_id, episode, state, calls FROM sessions ORDER BY 1, 2")
        ],
        "rewards": [
            tuple(row) for row in table("SELECT session_id, value, session IS NULL FROM rewards ORDER BY 1, 2")
        ],
    }


_LIVED = {
    "calls": [
        ("a", "complete", b'[{"role":"assistant"}]', 0, "03000000"),
        ("b", "complete", b"[]", 0, "02000000"),
        ("a", "complete", b"[]", 1, "05000000"),
        ("c", "interrupted", b"[half", 0, None),
    ],
    "sessions": [("a", 1, "closed", 2), ("b", 1, "closed", 1), ("c", 1, "open", 1)],
    "rewards": [("a", 0.25, 0), ("b", 0.75, 0)],
}


@pytest.mark.parametrize("small_reads", [False, True])
@pytest.mark.parametrize("died_after", range(20))
def test_a_kill_between_any_two_records_loses_nothing(
    tmp_path: Path, died_after: int, small_reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead process had taken in ``died_after`` records; then two more starts die while they catch up."""
    if small_reads:
        monkeypatch.setattr(journal, "_READ_BYTES", 300)
    recorded = Recorded(tmp_path)
    _a_life(recorded)
    records = recorded.ingestion._reader.read()
    while more := recorded.ingestion._reader.read():
        records += more
    recorded.abandon()
    recorded.open()
    if died_after:
        recorded.ingestion._batch = records[:died_after]
        recorded.ingestion._take(recorded.ingestion._batch)
    for _ in range(2):
        recorded.abandon()
        recorded.open()
        recorded.ingestion.run_once()  # one batch of a start that dies, too
    recorded.restart()
    assert _contents(recorded) == _LIVED
    recorded.restart()
    assert _contents(recorded) == _LIVED
    assert recorded.ingestion.refused == 0
    assert segments(tmp_path / "journal") == []
    recorded.abandon()


def test_a_crash_after_the_interrupted_were_marked_marks_them_once(recorded: Recorded) -> None:
    start = call_start("s")
    recorded.begin(start, [{"role": "user", "content": "hello"}])
    recorded.piece(start, b"[half an answer")
    kept = recorded.folder.parent / "kept"
    shutil.copytree(recorded.folder / "journal", kept)
    recorded.restart()
    # The crash comes before the old segment is deleted.
    shutil.copytree(kept, recorded.folder / "journal", dirs_exist_ok=True)
    recorded.restart()
    session = recorded.session("s")
    assert recorded.outcomes() == {start.id: "interrupted"}
    assert (session.calls, session.state) == (1, SessionState.OPEN)
    (row,) = calls.rows(recorded.db, session.key)
    assert row["not_trainable"] == "the proxy stopped during this call"
    assert calls.body(recorded.db, 1, "response") == b"[half an answer"


def test_an_untagged_call_that_was_interrupted_ends_its_session(recorded: Recorded) -> None:
    recorded.begin(call_start("u", session_by=TaggedBy.NONE, scenario=None), [])
    recorded.restart()
    assert (recorded.session("u").state, recorded.session("u").reason) == (SessionState.SKIPPED, "untagged")


def test_a_locked_database_costs_only_time(recorded: Recorded) -> None:
    recorded.ingestion._db.conn.execute("PRAGMA busy_timeout = 20")
    other = Database(recorded.folder)
    other.conn.execute("BEGIN EXCLUSIVE")
    starts = [recorded.call(call_start("s"), f"call {number}") for number in range(3)]
    for _ in range(3):
        assert recorded.ingestion.run_once()
        assert "locked" in (recorded.ingestion.problem or "")
    other.conn.execute("COMMIT")
    other.close()
    starts.append(recorded.call(call_start("s"), "after"))
    assert recorded.ingestion.run_once()
    recorded.take_in()
    assert list(recorded.outcomes()) == [start.id for start in starts]
    assert recorded.session("s").calls == 4


def test_a_full_disk_costs_only_time(recorded: Recorded) -> None:
    pages = recorded.db.number("PRAGMA page_count")
    recorded.ingestion._db.conn.execute(f"PRAGMA max_page_count = {pages}")
    recorded.turn(call_start("s"), [{"role": "user", "content": "x" * 50_000}], "y" * 50_000)
    assert recorded.ingestion.run_once()
    assert "full" in (recorded.ingestion.problem or "")
    recorded.ingestion._db.conn.execute("PRAGMA max_page_count = 1000000")
    assert recorded.ingestion.run_once()
    assert recorded.ingestion.problem is None
    assert recorded.session("s").calls == 1


_POISON = {
    "the capture is no JSON": b"\x00",
    "it lacks a field": b'{"reason": null}',
    "a list": b"[]",
    "an id beyond 32 bits": capture([2**40], [1]),
    "a logprob that is no number": capture([1], [2]).replace(b"-0.5", b"null"),
}


@pytest.mark.parametrize("payload", _POISON.values(), ids=_POISON.keys())
@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_poison_call_is_refused_alone(recorded: Recorded, payload: bytes, at: int) -> None:
    starts = [
        recorded.call(call_start(f"s{number}"), "hello", payload if number == at else None) for number in range(7)
    ]
    recorded.take_in()
    poison = starts.pop(at)
    assert list(recorded.outcomes()) == [start.id for start in starts]
    assert recorded.ingestion.refused == 1
    assert refused(recorded) == {
        f"{poison.id}.end": (refused(recorded)[f"{poison.id}.end"]),
        f"{poison.id}.request": b'{"messages": [{"role": "user", "content": "hello"}], "tools": []}',
        f"{poison.id}.response": b'[{"role": "assistant", "content": "answer to hello"}]',
        f"{poison.id}.capture": payload,
    }
    recorded.restart()
    assert list(recorded.outcomes()) == [start.id for start in starts]
    assert recorded.ingestion.refused == 0, "it is not read again"


def test_whatever_the_reading_of_a_call_raises_is_refused(recorded: Recorded) -> None:
    good, bad = call_start("good"), call_start("bad")
    recorded.begin(bad, [])
    recorded.piece(bad, POISON_TEXT)
    recorded.finish(bad)
    recorded.call(good, "hello")
    recorded.take_in()
    assert list(recorded.outcomes()) == [good.id]
    assert refused(recorded)[f"{bad.id}.response"] == POISON_TEXT


def test_a_poison_call_that_was_interrupted_does_not_stop_the_start(recorded: Recorded) -> None:
    bad, good = call_start("bad"), call_start("good")
    recorded.begin(bad, [])
    recorded.piece(bad, POISON_TEXT)
    recorded.begin(good, [])
    recorded.restart()
    assert recorded.outcomes() == {good.id: "interrupted"}
    assert refused(recorded)[f"{bad.id}.response"] == POISON_TEXT
    assert recorded.ingestion.refused == 1


def test_pieces_are_not_doubled_when_half_a_batch_waits(recorded: Recorded) -> None:
    """A poison record splits the batch; then a lock stops its second half."""
    start, bad = call_start("s"), call_start("bad")
    recorded.begin(start, [])
    recorded.take_in()
    recorded.piece(start, b'[{"role": "assistant", ')
    recorded.begin(bad, [])
    recorded.captured(bad, b"poison")
    recorded.finish(bad)
    recorded.piece(start, b'"content": "once"}]')
    refused_folder = recorded.folder / "journal" / "refused"
    refused_folder.write_text("a file where the folder of refused records should be: as a full disk")
    assert recorded.ingestion.run_once()
    assert recorded.ingestion.problem is not None
    refused_folder.unlink()
    recorded.finish(start)
    recorded.ingestion.run_once()
    recorded.take_in()
    assert json.loads(calls.body(recorded.db, 1, "response")) == [{"role": "assistant", "content": "once"}]
    assert set(refused(recorded)) == {f"{bad.id}.{part}" for part in ("end", "request", "response", "capture")}
    assert recorded.ingestion.refused == 1


def test_a_call_that_was_recorded_twice_is_kept_once(recorded: Recorded) -> None:
    start = recorded.call(call_start("s"), "hello")
    recorded.call(start, "hello again")
    recorded.take_in()
    assert recorded.outcomes() == {start.id: "complete"}
    assert recorded.session("s").calls == 1
    assert refused(recorded)[f"{start.id}.response"] == b'[{"role": "assistant", "content": "answer to hello again"}]'


def test_segments_are_deleted_when_no_call_needs_them(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 1)  # a segment for each record
    folder = recorded.folder / "journal"
    slow = call_start("slow")
    recorded.begin(slow, [])
    for number in range(5):
        recorded.call(call_start("s"), f"call {number}")
    recorded.take_in()
    assert segments(folder)[0] == 1, "a call that began in it is under way"
    recorded.finish(slow)
    recorded.take_in()
    assert segments(folder) == [recorded.writer.segment]
    assert len(recorded.outcomes()) == 6


def test_it_takes_everything_in_and_stops(recorded: Recorded) -> None:
    with recorded.running():
        for number in range(50):
            recorded.call(call_start(f"s{number % 5}"), f"call {number}")
        eventually(lambda: len(recorded.outcomes()) == 50)
        last = recorded.call(call_start("s"), "just before the end")
    assert last.id in recorded.outcomes()


def test_it_survives_a_lost_journal(recorded: Recorded) -> None:
    recorded.writer.append((Kind.PIECE, "0" * 32, b"the segment begins"))
    with recorded.running():
        moved = recorded.folder / "journal-away"
        (recorded.folder / "journal").rename(moved)
        recorded.writer.append((Kind.PIECE, "0" * 32, b"a call that nobody knows"))
        eventually(lambda: "No such file" in (recorded.ingestion.problem or ""))
        moved.rename(recorded.folder / "journal")
        last = recorded.call(call_start("s"), "hello")
        eventually(lambda: recorded.outcomes() == {last.id: "complete"})


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass in 60 s"
        time.sleep(0.01)


def test_it_survives_whatever_the_database_raises(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_RETRY_SECONDS", 0.05)

    def malformed(*_: object) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    told: list[str | None] = []
    with recorded.running(lambda status: told.append(status.problem)):
        with monkeypatch.context() as broken:
            # Also what keeps a refused record fails.
            broken.setattr(recorded.ingestion, "_apply", malformed)
            broken.setattr(recorded.ingestion, "_set_position", malformed)
            call = recorded.call(call_start("s"), "hello")
            eventually(lambda: bool(told) and "database disk image is malformed" in (told[-1] or ""))
        eventually(lambda: recorded.outcomes() == {call.id: "complete"})
        eventually(lambda: told[-1] is None)


def checkpointed(recorded: Recorded) -> bool:
    """Whether all of the WAL is in the database file."""
    row = recorded.db.first("PRAGMA wal_checkpoint(NOOP)")
    return row is not None and bool(row[1] == row[2])


def test_heartbeats_do_not_lengthen_the_wal_for_ever(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call comes; the trainer, which never checkpoints, beats."""
    recorded.ingestion._upkeep._checkpoint_at = 0
    monkeypatch.setattr(upkeep, "_CHECKPOINT_SECONDS", 0.05)
    monkeypatch.setattr(ingest, "_GATHER_SECONDS", 0.01)
    wal = recorded.db.path.with_name(f"{recorded.db.path.name}-wal")
    sizes = []
    with recorded.running():
        for _ in range(6):
            for number in range(100):
                coordination.beat(recorded.db, number, number + 1)
            sizes.append(wal.stat().st_size)
            eventually(lambda: checkpointed(recorded))
    assert sizes[-1] < sizes[0] + 200 * 4096, "each beat is a page at least"


def test_a_closed_session_is_not_remembered(recorded: Recorded) -> None:
    for name in ("ended", "idle", "open"):
        recorded.call(call_start(name), "hello")
    recorded.call(call_start("untagged", session_by=TaggedBy.NONE), "hello")
    recorded.close("ended")
    recorded.close("idle", ClosedBy.IDLE)
    recorded.take_in()
    writer = recorded.ingestion._calls
    assert list(writer._sessions) == [recorded.session("open").key]
    assert writer._remembered == sum(call.size for call in writer._sessions[recorded.session("open").key])


def test_a_call_of_which_a_part_was_lost_is_not_complete(recorded: Recorded) -> None:
    torn, whole = call_start("s"), call_start("s")
    recorded.begin(torn, [])
    recorded.piece(torn, b"a piece that is damaged")
    recorded.piece(torn, b"[]")
    recorded.finish(torn)
    recorded.begin(whole, [])
    recorded.piece(whole, b"[]")
    recorded.finish(whole)
    recorded.abandon()
    (segment,) = (recorded.folder / "journal").glob("*.segment")
    segment.write_bytes(segment.read_bytes().replace(b"that is damaged", b"that is dAmaged"))
    recorded.open()
    recorded.take_in()
    assert recorded.outcomes() == {torn.id: "truncated", whole.id: "complete"}
    assert recorded.ingestion.status.warnings == [
        "1 place of the journal could not be read: see the log and journal/lost"
    ]
