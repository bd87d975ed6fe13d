import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import coordination, groups, runs, versions
from storage.database import Database
from storage.errors import IllegalMove, NotFound
from storage.states import RunState, VersionState
from storage.types import BASE, GroupId, Run, RunId, RunRequest, VersionNumber
from tests.storage.recorded import Recorded, call_start


def asked(name: str, at: float = 1.0, **settings: Any) -> RunRequest:
    return RunRequest(RunId(name), None, settings, at)


def started(db: Database, name: str, parent: int | None = None) -> Run:
    """A run that has its version number; its parent is the newest version unless one is named."""
    with db.transaction():
        runs.create(db, asked(name))
        behind = runs.newest_version(db) if parent is None else VersionNumber(parent)
        runs.reserve_version(db, RunId(name), behind, {}, 2.0)
    return runs.get(db, RunId(name))


def ended(db: Database, name: str, state: RunState = RunState.SUCCEEDED) -> Run:
    started(db, name)
    with db.transaction():
        runs.end(db, RunId(name), state, None if state is RunState.SUCCEEDED else "why", {}, 3.0)
    return runs.get(db, RunId(name))


def rejected(db: Database, number: int) -> None:
    version = VersionNumber(number)
    row = db.first("SELECT id FROM runs WHERE version = ?", (number,))
    assert row is not None
    versions.add(db, runs.get(db, RunId(row["id"])), "/folder", "digest", 1.0)
    versions.move(db, version, VersionState.REJECTED, "worse", 2.0)


def test_a_run_from_its_request_to_its_end(db: Database) -> None:
    runs.request(db, RunRequest(RunId("r"), "task", {"steps": 2}, 1.0))
    assert [request.settings for request in runs.requests(db)] == [{"steps": 2}]
    assert runs.get(db, RunId("r")).state is RunState.REQUESTED
    with db.transaction():
        runs.create(db, runs.requests(db)[0])
    assert runs.requests(db) == []
    with db.transaction():
        assert runs.reserve_version(db, RunId("r"), BASE, {"steps": 2, "rank": 8}, 2.0) == 1
    run = runs.get(db, RunId("r"))
    assert (run.state, run.version, run.parent, run.started_at, run.scenario) == (RunState.RUNNING, 1, 0, 2.0, "task")
    with db.transaction():
        runs.end(db, RunId("r"), RunState.SUCCEEDED, None, {"loss": 0.5}, 3.0)
    run = runs.get(db, RunId("r"))
    assert (run.state, run.metrics, run.settings, run.ended_at) == (
        RunState.SUCCEEDED,
        {"loss": 0.5},
        {"steps": 2, "rank": 8},
        3.0,
    )
    assert runs.is_ended(run)
    assert runs.newest(db) == run
    with pytest.raises(IllegalMove):
        runs.end(db, RunId("r"), RunState.FAILED, "late", {}, 4.0)


def test_requests_come_oldest_first_and_newest_first_in_lists(db: Database) -> None:
    for name, at in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        runs.request(db, asked(name, at))
    assert [request.id for request in runs.requests(db)] == ["a", "b", "c"]
    assert [run.id for run in runs.rows(db, 2, None)] == ["c", "b"]
    assert [run.id for run in runs.rows(db, 2, "b")] == ["a"]
    with pytest.raises(NotFound, match="no run nothing"):
        runs.get(db, RunId("nothing"))


@given(st.lists(st.sampled_from([RunState.SUCCEEDED, RunState.FAILED, RunState.RUNNING]), max_size=8))
def test_version_numbers_are_never_given_again(states: list[RunState]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = Database(Path(folder))
        given_numbers = []
        for number, state in enumerate(states):
            run = started(db, f"r{number}") if state is RunState.RUNNING else ended(db, f"r{number}", state)
            given_numbers.append(run.version)
        assert given_numbers == list(range(1, len(states) + 1))
        good = [n for n, state in zip(given_numbers, states, strict=True) if state is RunState.SUCCEEDED]
        assert runs.newest_version(db) == (good[-1] if good else 0)
        db.close()


def test_steps_are_counted_along_the_chain(db: Database) -> None:
    """1 ← 2 ← 5 is the chain; 3 was rejected, and was 2's; 4 failed."""
    assert runs.steps_behind(db, BASE) == 0
    assert [ended(db, "one").version, ended(db, "two").version, ended(db, "three").version] == [1, 2, 3]
    assert [runs.steps_behind(db, VersionNumber(n)) for n in range(4)] == [3, 2, 1, 0]
    rejected(db, 3)
    assert [runs.steps_behind(db, VersionNumber(n)) for n in range(4)] == [2, 1, 0, 0]
    assert ended(db, "four", RunState.FAILED).version == 4
    five = ended(db, "five")
    assert (five.version, five.parent) == (5, 2)
    assert [runs.steps_behind(db, VersionNumber(n)) for n in range(6)] == [3, 2, 1, 1, 1, 0]
    assert [run.version for run in runs.succeeded_after(db, VersionNumber(1))] == [2, 3, 5]


def test_an_unknown_version_counts_as_the_base_model(db: Database) -> None:
    ended(db, "one")
    ended(db, "two")
    assert runs.steps_behind(db, VersionNumber(77)) == 2


def test_an_import_without_a_parent_begins_at_the_base_model(db: Database) -> None:
    ended(db, "one")
    db.insert(
        "runs", id="i", kind="import", state="succeeded", requested_at=1.0, version=2, settings="{}", metrics="{}"
    )
    assert runs.newest_version(db) == 2
    assert [runs.steps_behind(db, VersionNumber(n)) for n in range(3)] == [1, 1, 0]


def test_a_run_knows_what_it_took(recorded: Recorded) -> None:
    db = recorded.db
    for name in ("a", "b"):
        recorded.call(call_start(name), "hello")
        recorded.close(name)
    recorded.take_in()
    groups.claim(db, GroupId("g"), [recorded.session("a"), recorded.session("b")], 1.0)
    started(db, "r")
    with db.transaction():
        groups.set_consumed(db, RunId("r"), [GroupId("g")])
    assert [group.id for group in groups.consumed_by(db, RunId("r"))] == ["g"]
    assert groups.consumed_by(db, RunId("other")) == []


def test_versions_move_as_they_may(db: Database) -> None:
    versions.ensure_base(db, 1.0)
    versions.ensure_base(db, 2.0)
    assert (versions.live(db).number, versions.newest_number(db)) == (0, 0)
    one = versions.add(db, ended(db, "one"), "/adapters/policy@1", "abc", 3.0)
    assert (one.state, one.parent, one.run, one.path, one.digest) == (
        VersionState.TRAINED,
        0,
        "one",
        "/adapters/policy@1",
        "abc",
    )
    with pytest.raises(IllegalMove, match="version 1 cannot go from trained to live"):
        versions.move(db, one.number, VersionState.LIVE, None, 4.0)
    versions.move(db, one.number, VersionState.VERIFIED, None, 4.0)
    with db.transaction():
        versions.move(db, BASE, VersionState.STANDBY, None, 5.0)
        versions.move(db, one.number, VersionState.LIVE, None, 5.0)
    one = versions.live(db)
    assert (one.number, one.verified_at, one.live_at) == (1, 4.0, 5.0)
    versions.set_probe(db, one.number, {"slope": 0.98})
    assert versions.get(db, one.number).probe == {"slope": 0.98}
    versions.set_loading(db, one.number, "http://a", 1.0, None)
    versions.set_loading(db, one.number, "http://a", 2.0, "right")
    assert [(row["upstream"], row["verdict"], row["probed_at"]) for row in versions.loadings(db)] == [
        ("http://a", "right", 2.0)
    ]
    with pytest.raises(NotFound, match="no version 9"):
        versions.get(db, VersionNumber(9))


def test_the_trainer_says_what_it_does(db: Database) -> None:
    assert coordination.trainer(db) is None
    coordination.say(db, "before the first beat")
    assert coordination.trainer(db) is None
    coordination.beat(db, 10.0)
    coordination.say(db, "scoring", "4 groups", "no judge")
    changes = db.conn.total_changes
    coordination.beat(db, 12.0, 70.0)
    assert db.conn.total_changes - changes == 1
    state = coordination.trainer(db)
    assert state is not None
    assert (state.heartbeat_at, state.next_cycle_at, state.doing, state.waits_for, state.problem) == (
        12.0,
        70.0,
        "scoring",
        "4 groups",
        "no judge",
    )
    assert db.number("SELECT count(*) FROM trainer_state") == 1


def test_pause_and_resume(db: Database) -> None:
    assert not coordination.is_paused(db)
    for paused in (True, True, False, True):
        coordination.set_paused(db, paused)
        assert coordination.is_paused(db) is paused
