"""A trainer that is killed at any step of its cycle neither loses nor repeats a group."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from storage import groups
from storage.states import RunState
from tests.trainer.fake_judge import FakeJudge, by_length, served
from tests.trainer.mortal_cycle import STEPS, live
from tests.trainer.workshop import Workshop
from trainer.settings import TrainerSettings


@pytest.fixture
def fake() -> Iterator[FakeJudge]:
    with served(FakeJudge(decide=by_length)) as judge:
        yield judge


def die(settings: TrainerSettings, judge: str, step: str) -> int:
    """A trainer's life up to ``step``; returns its exit status."""
    text = settings.model_dump_json(include={"data", "upstream", "group", "trainer"})
    command = [sys.executable, "-m", "tests.trainer.mortal_cycle", text, judge, step]
    return subprocess.run(command, check=False, timeout=120).returncode


@pytest.mark.parametrize("step", STEPS)
def test_a_trainer_that_is_killed_loses_and_repeats_no_group(workshop: Workshop, fake: FakeJudge, step: str) -> None:
    judged = [workshop.closed("x" * (number + 1), scenario="judged") for number in range(4)]
    rewarded = workshop.many([0.0, 0.25, 0.5, 1.0], "rewarded")
    assert die(workshop.settings(), fake.url, step) == -signal.SIGKILL
    live(workshop.settings(), fake.url)

    succeeded = {run.id: run for run in workshop.all_runs() if run.state is RunState.SUCCEEDED}
    assert all(run.state in (RunState.SUCCEEDED, RunState.FAILED) for run in workshop.all_runs())
    for members in (judged, rewarded):
        ends = {workshop.outcome(member) for member in members}
        assert len(ends) == 1, "one group ends in one run"
        ((outcome, reason, run),) = [end for end in ends if end is not None]
        assert (outcome, reason, run in succeeded) == ("trained", None, True)
    assert groups.states(workshop.db) == {"trained": 2}
    learned = workshop.db.all(
        'SELECT "group", count(*) FROM run_groups JOIN runs ON runs.id = run_groups.run WHERE state = ?'
        ' GROUP BY "group"',
        (RunState.SUCCEEDED,),
    )
    assert [row[1] for row in learned] == [1, 1]

    # What was judged twice, since the first answer was lost, is counted once.
    assert len(fake.requests) == (2 if step == "scoring, the answer is not yet kept" else 1)
    assert workshop.db.number("SELECT sum(judge_tokens) FROM groups") == 10

    versions = sorted(run.version for run in succeeded.values() if run.version is not None)
    assert len(versions) == len(succeeded) == len(set(versions))
    assert all((workshop.folder / "adapters" / f"policy@{number}" / "manifest.json").exists() for number in versions)
    assert not list((workshop.folder / "jobs").glob("*"))
