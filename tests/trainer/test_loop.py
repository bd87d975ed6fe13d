"""The trainer as it runs: scheduler, heartbeat, a real judge's client and the update worker's own protocol."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage import coordination, groups, runs
from storage.states import RunState
from tests.trainer.fake_judge import FakeJudge, by_length, served
from tests.trainer.workshop import Workshop
from trainer.errors import AlreadyRunning
from trainer.loop import Trainer, only_one
from trainer.worker import UpdateWorker

_STUB = Path(__file__).parent / "stub_update.py"


@contextmanager
def running(workshop: Workshop, *stub: str, **changes: Any) -> Iterator[Trainer]:
    """A trainer that turns once an hour, unless something is due."""
    worker = UpdateWorker(workshop.folder / "logs" / "update.log", command=[sys.executable, str(_STUB), *stub])
    settings = workshop.settings(**{"trainer": {"groups": 1, "interval": 3600.0}, **changes})
    trainer = Trainer(settings, worker)
    trainer.start()
    try:
        yield trainer
    finally:
        trainer.stop()


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass in 60 s"
        time.sleep(0.02)


def doing(workshop: Workshop) -> str:
    state = coordination.trainer(workshop.db)
    return state.doing if state else ""


def ended(workshop: Workshop) -> bool:
    return [run for run in workshop.all_runs() if run.ended_at] != []


def test_the_heartbeat_and_the_next_cycle(workshop: Workshop) -> None:
    began = time.time()
    with running(workshop):
        eventually(lambda: doing(workshop) == "waiting")
        first = coordination.trainer(workshop.db)
        assert first is not None
        assert began <= first.heartbeat_at <= time.time()
        eventually(lambda: (coordination.trainer(workshop.db) or first).heartbeat_at > first.heartbeat_at)
        eventually(lambda: (coordination.trainer(workshop.db) or first).next_cycle_at is not None)
        state = coordination.trainer(workshop.db)
        assert state is not None
        assert began + 3500 < (state.next_cycle_at or 0.0) < time.time() + 3601


def test_a_full_group_does_not_wait_for_the_interval(workshop: Workshop) -> None:
    with (
        served(FakeJudge(decide=by_length)) as fake,
        running(workshop, judge_base_url=fake.url, judge_model="judge-1", judge_api_key="key"),
    ):
        eventually(lambda: doing(workshop) == "waiting")
        members = [workshop.closed("x" * (number + 1)) for number in range(3)]
        time.sleep(0.6)
        assert groups.states(workshop.db) == {}, "three are not yet a group"
        members.append(workshop.closed("y" * 9))
        eventually(lambda: ended(workshop))
        (run,) = workshop.all_runs()
        assert (run.state, run.version, run.metrics["loss"]) == (RunState.SUCCEEDED, 1, 0.5)
        assert [workshop.outcome(member) for member in members] == [("trained", None, run.id)] * 4
        assert fake.headers[0]["authorization"] == "Bearer key"
        assert (workshop.folder / "adapters" / "policy@1" / "manifest.json").exists()


def test_a_request_does_not_wait_for_the_interval(workshop: Workshop) -> None:
    workshop.many([0.0, 1.0])
    with running(workshop):
        eventually(lambda: doing(workshop) == "waiting")
        request = workshop.ask()
        eventually(lambda: ended(workshop))
        (run,) = workshop.all_runs()
        assert (run.id, run.state) == (request.id, RunState.SUCCEEDED)


def test_a_stop_ends_the_run_and_its_groups_wait(workshop: Workshop) -> None:
    workshop.many([0.0, 0.5, 0.75, 1.0])
    with running(workshop, "sleep"):
        eventually(lambda: [run.state for run in workshop.all_runs()] == [RunState.RUNNING])
    (run,) = workshop.all_runs()
    assert run.state is RunState.FAILED
    # The second, where the stop came between the run's beginning and the job's.
    assert run.reason in ("the update worker was closed during the job", "the update worker is closed")
    assert groups.states(workshop.db) == {"scored": 1}
    with running(workshop):
        eventually(lambda: len(workshop.all_runs()) == 2 and workshop.all_runs()[1].state is RunState.SUCCEEDED)
    assert groups.states(workshop.db) == {"trained": 1}


def test_a_stop_leaves_what_was_not_begun_as_it_was(workshop: Workshop) -> None:
    workshop.many([0.0, 1.0])
    first, second = workshop.ask(), workshop.ask()
    with running(workshop, "sleep"):
        eventually(lambda: [run.state for run in workshop.all_runs()] == [RunState.RUNNING])
    (run,) = workshop.all_runs()
    assert (run.id, run.state) == (first.id, RunState.FAILED)
    assert [asked.id for asked in runs.requests(workshop.db)] == [second.id]


def test_a_cycle_that_fails_is_said_and_the_heart_beats_on(workshop: Workshop) -> None:
    workshop.many([0.0, 0.5, 0.75, 1.0])
    with running(workshop, "garbage"):
        eventually(lambda: (coordination.trainer(workshop.db)) is not None and bool(_problem(workshop)))
        assert "the cycle failed (JSONDecodeError" in _problem(workshop)
        beat = coordination.trainer(workshop.db)
        assert beat is not None
        eventually(lambda: (coordination.trainer(workshop.db) or beat).heartbeat_at > beat.heartbeat_at)
        request = workshop.ask()
        time.sleep(1.2)
        assert len(workshop.all_runs()) == 1, f"after a failure the request {request.id} waits for the next turn"
    assert [run.state for run in workshop.all_runs()] == [RunState.FAILED]


def _problem(workshop: Workshop) -> str:
    state = coordination.trainer(workshop.db)
    return (state.problem if state else None) or ""


def test_one_trainer_on_a_data_folder(workshop: Workshop, tmp_path: Path) -> None:
    settings = workshop.settings()
    with only_one(settings):
        with pytest.raises(AlreadyRunning, match=f"another trainer works on {workshop.folder}: stop it first"):
            only_one(settings).__enter__()
        with only_one(workshop.settings(data=tmp_path / "else" / "where")):
            pass
        assert [path.stat().st_mode & 0o777 for path in (tmp_path / "else", tmp_path / "else" / "where")] == [0o700] * 2
    with only_one(settings):
        pass
