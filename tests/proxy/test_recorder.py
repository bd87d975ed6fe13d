"""A recorder whose journal fails for a while: what it could not end is ended as soon as it can."""

from __future__ import annotations

import pytest

from proxy.recorder import Recorder
from storage import calls, journal
from storage.errors import JournalDown
from storage.journal import Entry, Kind, segments
from storage.states import CallOutcome
from storage.types import CallStart
from tests.storage.recorded import Recorded, call_end, call_start, capture

REQUEST = b'{"messages": []}'


@pytest.fixture
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("data"))


def fails(*entries: Entry) -> None:
    raise JournalDown(f"the disk is full: no {entries[0][0].name}")


def outcome(recorded: Recorded, start: CallStart) -> tuple[CallOutcome, str | None]:
    recorded.take_in()
    (found,) = [c for c in calls.of_session(recorded.db, recorded.session("s").key) if c.id == start.id]
    return found.outcome, found.not_trainable


def test_a_call_that_lost_a_piece_ends_and_pins_no_segment(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SEGMENT_BYTES", 1)  # a segment for each record
    recorder = Recorder(recorded.writer)
    broken, whole = call_start("s"), call_start("s")
    recording = recorder.start(broken, REQUEST)
    with monkeypatch.context() as down:
        down.setattr(recorded.writer, "append", fails)
        recording.piece(b"[lost")
        assert not recorder.append((Kind.PIECE, "0" * 32))
        assert "the disk is full" in (recorder.problem or "")
    recording.piece(b"not kept")
    other = recorder.start(whole, REQUEST)
    other.piece(b"[]")
    other.capture(capture([1], [2]))
    other.end(call_end(whole))
    recording.end(call_end(broken))
    assert outcome(recorded, broken) == (CallOutcome.TRUNCATED, "recording was down during this call")
    assert outcome(recorded, whole) == (CallOutcome.COMPLETE, None)
    assert segments(recorded.folder / "journal") == [recorded.writer.segment]
    assert recorder.problem is None
    assert recorder.lost == 1
    recorded.abandon()


def test_an_end_that_was_lost_is_recorded_later(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(recorded.writer)
    start = call_start("s")
    recording = recorder.start(start, REQUEST)
    recording.piece(b"[]")
    recording.capture(capture([1], [2]))
    with monkeypatch.context() as down:
        down.setattr(recorded.writer, "append", fails)
        recording.end(call_end(start))
    assert recorder.append((Kind.PIECE, "0" * 32))
    assert outcome(recorded, start) == (CallOutcome.COMPLETE, None)
    recorded.abandon()


def test_a_call_whose_start_was_lost_has_no_end(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(recorded.writer)
    start = call_start("s")
    with monkeypatch.context() as down:
        down.setattr(recorded.writer, "append", fails)
        recording = recorder.start(start, REQUEST)
    recording.end(call_end(start))
    assert recorder.append((Kind.PIECE, "0" * 32))
    assert recorded.writer.tail.position.offset < 100, "one empty record"
    assert recorder.lost == 1
    recorded.abandon()


def test_what_leaves_at_the_end_is_one_write(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(recorded.writer)
    start = call_start("s")
    recording = recorder.start(start, REQUEST)
    written = recorded.writer.tail.position
    recording.capture(capture([1], [2]))
    recording.keep(b"[")
    recording.keep(b"]")
    assert recorded.writer.tail.position == written
    with monkeypatch.context() as down:
        down.setattr(recorded.writer, "append", fails)
        recording.end(call_end(start))
    assert recorder.append((Kind.PIECE, "0" * 32))
    assert recorder.lost == 1
    assert outcome(recorded, start) == (CallOutcome.COMPLETE, None), "what can still be kept is not dropped"
    recorded.abandon()


def test_a_piece_that_leaves_is_written_before(recorded: Recorded) -> None:
    start = call_start("s")
    recording = Recorder(recorded.writer).start(start, REQUEST)
    recording.piece(b"[")
    recording.capture(capture([1], [2]))
    recording.piece(b"1]")
    recording.keep(b" ")
    recorded.restart()
    row = recorded.db.first("SELECT outcome, response FROM calls WHERE id = ?", (start.id,))
    assert row is not None
    assert (row["outcome"], row["response"][1:]) == (CallOutcome.INTERRUPTED, b"[1]")
    recorded.abandon()


def test_a_thousand_records_are_one_write(recorded: Recorded) -> None:
    start = call_start("s")
    recording = Recorder(recorded.writer).start(start, REQUEST)
    for text in (b"[1", *[b",1"] * 1000, b"]"):
        recording.keep(text)
    recording.capture(capture([1], [2]))
    recording.end(call_end(start))
    assert outcome(recorded, start) == (CallOutcome.COMPLETE, None)
    recorded.abandon()
