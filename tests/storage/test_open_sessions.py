"""Open sessions are known without asking the database, and never beyond what it holds."""

import pytest

from storage import calls, sessions
from storage.retention import delete_part
from storage.states import ClosedBy, SessionState
from storage.types import Owner, TaggedBy
from tests.storage.recorded import Recorded, call_start, identity


def asked(recorded: Recorded) -> list[str]:
    """The questions for sessions that the ingestion asks from now on."""
    found: list[str] = []
    recorded.ingestion._db.conn.set_trace_callback(
        lambda sql: found.append(sql) if sql.startswith("SELECT * FROM sessions") else None
    )
    return found


def test_a_session_is_asked_for_once(recorded: Recorded) -> None:
    questions = asked(recorded)
    for number in range(5):
        recorded.call(call_start("s"), f"call {number}")
        recorded.take_in()
    assert len(questions) == 1
    assert recorded.session("s").calls == 5


def test_what_a_call_says_otherwise_is_taken_in(recorded: Recorded) -> None:
    recorded.call(call_start("s", scenario=None, scenario_by=TaggedBy.NONE), "one")
    recorded.call(call_start("s", scenario="inferred", scenario_by=TaggedBy.INFERRED), "two")
    recorded.call(call_start("s", scenario="said"), "three")
    recorded.call(call_start("s", scenario="said", split="eval"), "four")
    recorded.call(call_start("s", scenario="said"), "five")
    recorded.take_in()
    session = recorded.session("s")
    assert (session.scenario, session.scenario_by, session.split) == ("said", TaggedBy.HEADER, "eval")
    assert session.calls == 5


@pytest.mark.parametrize("by", ClosedBy)
def test_a_closed_session_is_asked_for_again(recorded: Recorded, by: ClosedBy) -> None:
    recorded.call(call_start("s"), "one")
    recorded.close("s", by)
    recorded.call(call_start("s"), "two")
    recorded.take_in()
    again = by is ClosedBy.IDLE
    assert recorded.session("s").episode == (1 if again else 2)
    assert recorded.session("s").state is SessionState.OPEN


def test_a_session_of_one_untagged_call_is_not_gone_on_with(recorded: Recorded) -> None:
    for number in (1, 2):
        recorded.call(call_start("u", session_by=TaggedBy.NONE), f"call {number}")
        recorded.take_in()
        assert recorded.session("u").episode == number


def test_what_another_program_did_to_a_session_is_seen(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "one")
    recorded.take_in()
    recorded.db.execute("UPDATE sessions SET state = 'skipped'")
    recorded.call(call_start("s"), "two")
    recorded.take_in()
    assert recorded.session("s").episode == 2


def test_a_session_that_another_program_deleted_begins_anew(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    recorded.call(call_start("s"), "one")
    recorded.take_in()
    with recorded.db.transaction():
        delete_part(recorded.db, recorded.session("s").key, 10)
    recorded.call(call_start("s"), "two")
    recorded.take_in()
    assert not caplog.records
    assert len(calls.of_session(recorded.db, recorded.session("s").key)) == 1


def test_sessions_of_one_name_belong_to_their_owners(recorded: Recorded) -> None:
    for owner in ("one", "other"):
        recorded.call(call_start("s", identity=identity("s", owner)), "hello")
    recorded.take_in()
    assert [s.calls for s in sessions.opened(recorded.db)] == [1, 1]
    assert {s.owner for s in sessions.opened(recorded.db)} == {Owner("one"), Owner("other")}
