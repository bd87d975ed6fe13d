"""The trainer's cycle as a process that kills itself at a step; all of it is real but for the update.

``python -m tests.trainer.mortal_cycle SETTINGS JUDGE STEP``: settings as JSON, the judge's address, and where to die.
"""

import json
import os
import pkgutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.database import Database
from trainer.cycle import Cycle
from trainer.judge import Judge
from trainer.settings import TrainerSettings
from trainer.training_runs import TrainingRuns
from trainer.worker import UpdateWorker

_TURNS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """Before or after a call of ``function``: its ``number``-th one of those with ``argument`` among the arguments."""

    function: str
    when: str
    number: int = 1
    argument: str | None = None


STEPS = {
    "forming, before the second member": Step("storage.database:Database.insert", "before", 2, "group_members"),
    "formed": Step("storage.groups:claim", "after"),
    "scoring, before the judge is asked": Step("trainer.ruler:score", "before"),
    "scoring, the answer is not yet kept": Step("trainer.ruler:score", "after"),
    "scored": Step("trainer.scoring:by_judge", "after"),
    "reserving the version": Step("storage.runs:reserve_version", "after"),
    "reserved": Step("trainer.training_runs:TrainingRuns._start", "after"),
    "job written": Step("trainer.jobs:Job.write", "after"),
    "worker running": Step("trainer.worker:UpdateWorker._await", "before"),
    "published": Step("trainer.worker:UpdateWorker.run", "after"),
    "the run has ended, before the second outcome": Step("storage.database:Database.insert", "before", 2, "outcomes"),
    "outcomes written": Step("trainer.training_runs:TrainingRuns._succeed", "after"),
}


def mortal(function: Callable[..., Any], step: Step) -> Callable[..., Any]:
    seen = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += step.argument is None or step.argument in args
        dies = seen == step.number
        if dies and step.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


def arm(step: Step) -> None:
    path, _, name = step.function.rpartition("." if "." in step.function.partition(":")[2] else ":")
    owner = pkgutil.resolve_name(path)
    setattr(owner, name, mortal(getattr(owner, name), step))


def live(settings: TrainerSettings, judge_url: str) -> None:
    """As many turns as a failed run and its repetition need."""
    db = Database(settings.data)
    command = [sys.executable, str(Path(__file__).with_name("stub_update.py"))]
    worker = UpdateWorker(settings.logs / "update-worker.log", command=command)
    judge = Judge(judge_url, "judge-1", None)
    cycle = Cycle(db, settings, judge, TrainingRuns(db, settings, worker))
    for _ in range(_TURNS):
        cycle.turn()
    worker.close()
    judge.close()
    db.close()


if __name__ == "__main__":
    arm(STEPS[sys.argv[3]])
    live(TrainerSettings(**json.loads(sys.argv[1])), sys.argv[2])
