"""When a session opens, closes, opens again, and when its id begins the next episode."""

from storage import groups, sessions
from storage.states import ClosedBy, SessionState
from storage.types import GroupId, TaggedBy
from tests.storage.recorded import Recorded, call_start, identity


def test_closing_goes_behind_the_calls(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "hello")
    recorded.close("s")
    recorded.take_in()
    session = recorded.session("s")
    assert (session.state, session.closed_by, session.calls) == (SessionState.CLOSED, ClosedBy.ENDED, 1)
    assert [waiting.session_id for waiting in sessions.waiting(recorded.db)] == ["s"]


def test_an_idle_session_opens_again_for_a_late_call(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "hello")
    recorded.close("s", ClosedBy.IDLE)
    recorded.call(call_start("s"), "late")
    recorded.take_in()
    session = recorded.session("s")
    assert (session.state, session.closed_by, session.closed_at, session.episode) == (SessionState.OPEN, None, None, 1)
    assert session.calls == 2


def test_an_ended_session_is_followed_by_the_next_episode(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "hello")
    recorded.close("s", ClosedBy.ENDED)
    recorded.call(call_start("s"), "again")
    recorded.take_in()
    assert [(s.episode, s.state, s.calls) for s in (recorded.session("s", 1), recorded.session("s"))] == [
        (1, SessionState.CLOSED, 1),
        (2, SessionState.OPEN, 1),
    ]


def test_an_explicit_end_stands_above_an_idle_one(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "hello")
    recorded.close("s", ClosedBy.IDLE)
    recorded.close("s", ClosedBy.ENDED)
    recorded.close("s", ClosedBy.IDLE)
    recorded.call(call_start("s"), "again")
    recorded.take_in()
    assert recorded.session("s").episode == 2
    assert recorded.session("s", 1).closed_by is ClosedBy.ENDED


def test_after_a_claim_the_id_opens_its_next_episode(recorded: Recorded) -> None:
    for name in ("a", "b"):
        recorded.call(call_start(name), "hello")
        recorded.close(name, ClosedBy.IDLE)
    recorded.take_in()
    assert groups.claim(recorded.db, GroupId("g"), sessions.waiting(recorded.db), 1.0)
    recorded.call(call_start("a"), "late")
    recorded.take_in()
    assert [(s.episode, s.state) for s in (recorded.session("a", 1), recorded.session("a"))] == [
        (1, SessionState.CLOSED),
        (2, SessionState.OPEN),
    ]


def test_an_untagged_call_is_a_session_of_its_own(recorded: Recorded) -> None:
    recorded.call(call_start("u1", session_by=TaggedBy.NONE), "hello")
    recorded.call(call_start("u2", session_by=TaggedBy.NONE), "hello")
    recorded.take_in()
    for name in ("u1", "u2"):
        session = recorded.session(name)
        assert (session.state, session.reason, session.closed_by) == (SessionState.SKIPPED, "untagged", ClosedBy.ENDED)
    assert sessions.waiting(recorded.db) == []


def test_a_session_without_scenario_is_skipped_when_it_closes(recorded: Recorded) -> None:
    recorded.call(call_start("none", scenario=None), "hello")
    recorded.call(call_start("late", scenario=None), "hello")
    recorded.call(call_start("late", scenario="task"), "hello")
    recorded.close("none")
    recorded.close("late")
    recorded.take_in()
    assert (recorded.session("none").state, recorded.session("none").reason) == (
        SessionState.SKIPPED,
        "no scenario: tag its calls with X-Scenario-Id",
    )
    assert (recorded.session("late").state, recorded.session("late").scenario) == (SessionState.CLOSED, "task")


def test_one_call_for_evaluation_makes_the_session_one(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "hello")
    recorded.call(call_start("s", split="eval"), "hello")
    recorded.call(call_start("s"), "hello")
    recorded.take_in()
    assert recorded.session("s").split == "eval"


def test_closing_what_is_not_known_is_no_fault(recorded: Recorded) -> None:
    recorded.close("nobody")
    recorded.take_in()
    assert sessions.newest(recorded.db, identity("nobody")) is None
    assert recorded.ingestion.refused == 0


def test_a_scenario_that_is_given_replaces_one_that_was_inferred(recorded: Recorded) -> None:
    recorded.call(call_start("s", scenario="auto-1", scenario_by=TaggedBy.INFERRED), "hello")
    recorded.call(call_start("s", scenario="auto-2", scenario_by=TaggedBy.INFERRED), "hello")
    recorded.take_in()
    assert (recorded.session("s").scenario, recorded.session("s").scenario_by) == ("auto-1", TaggedBy.INFERRED)
    recorded.call(call_start("s", scenario="task", scenario_by=TaggedBy.BODY), "hello")
    recorded.call(call_start("s", scenario="other"), "hello")
    recorded.call(call_start("s", scenario="auto-3", scenario_by=TaggedBy.INFERRED), "hello")
    recorded.take_in()
    assert (recorded.session("s").scenario, recorded.session("s").scenario_by) == ("task", TaggedBy.BODY)


def test_an_ambiguous_session_is_skipped_when_it_closes(recorded: Recorded) -> None:
    for name in ("open", "idle", "claimed", "claimed too", "other"):
        recorded.call(call_start(name), "hello")
    for name in ("idle", "claimed", "claimed too"):
        recorded.close(name, ClosedBy.IDLE)
    recorded.take_in()
    claimed = [recorded.session(name) for name in ("claimed", "claimed too")]
    assert groups.claim(recorded.db, GroupId("g"), claimed, 1.0)
    recorded.call(call_start("new", ambiguous=("new", "open", "idle", "claimed", "nobody")), "hello")
    recorded.take_in()
    ambiguous = (SessionState.SKIPPED, "ambiguous")
    states = {name: (recorded.session(name).state, recorded.session(name).reason) for name in ("idle", "claimed")}
    assert states == {"idle": ambiguous, "claimed": (SessionState.CLOSED, None)}
    assert recorded.session("open").state is SessionState.OPEN
    for name in ("open", "new", "other"):
        recorded.close(name)
    recorded.take_in()
    ended = {name: (recorded.session(name).state, recorded.session(name).reason) for name in ("open", "new", "other")}
    assert ended == {"open": ambiguous, "new": ambiguous, "other": (SessionState.CLOSED, None)}


def test_a_scenario_is_shared_within_one_owner(recorded: Recorded) -> None:
    for name, owner, scenario in (
        ("old", "me", "a"),
        ("1", "me", "a"),
        ("2", "me", "b"),
        ("3", "them", "b"),
        ("4", "me", "c"),
        ("5", "me", "c"),
        ("6", "me", None),
    ):
        recorded.call(call_start(identity=identity(name, owner), scenario=scenario), "hello")
    recorded.take_in()
    assert sessions.alone(recorded.db, 100) == (6, 2)
    assert sessions.alone(recorded.db, 6) == (5, 2)
    assert sessions.alone(recorded.db, 1) == (0, 0)


def test_to_look_for_shared_scenarios_takes_as_long_however_many_sessions_there_are(recorded: Recorded) -> None:
    asked: list[str] = []
    recorded.db.conn.set_trace_callback(asked.append)
    sessions.alone(recorded.db, 100)
    recorded.db.conn.set_trace_callback(None)
    plan = [row["detail"] for row in recorded.db.all(f"EXPLAIN QUERY PLAN {asked[-1]}")]
    scans = [step for step in plan if step.startswith("SCAN") and step != "SCAN s"]
    assert [step for step in plan if "other" in step] == [
        "SEARCH other USING COVERING INDEX sessions_by_owner_and_scenario (owner=? AND scenario=?)"
    ]
    assert scans == ["SCAN sessions"]  # the newest of them, by their keys: nothing is sorted
    assert not [step for step in plan if "TEMP B-TREE" in step]
