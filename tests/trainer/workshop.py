"""A data folder with recorded sessions, and the trainer's parts at work on it; only the update worker is a stand-in."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage import groups, runs, sessions
from storage.database import Database
from storage.states import ClosedBy
from storage.types import (
    DEFAULT_OWNER,
    Group,
    GroupId,
    Run,
    RunId,
    RunRequest,
    Session,
    SessionKey,
    VersionNumber,
    new_id,
)
from tests.storage.recorded import BEGAN, Recorded, a_reward, call_start, capture, identity
from trainer import scoring
from trainer.batches import Batch
from trainer.cycle import Cycle
from trainer.errors import UpdateFailed
from trainer.jobs import BATCH, PARENT, Job, Parent
from trainer.judge import Judge
from trainer.publication import MANIFEST, Manifest, publication
from trainer.question import Terms
from trainer.settings import TrainerSettings
from trainer.training_runs import TrainingRuns

METRICS = {"loss": 0.25}
FILES = ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors")
"""Each holds its name."""


def publish(job: Job) -> None:
    """What the worker leaves when it is done."""
    assert job.target is not None
    manifest = Manifest(
        run=job.run,
        policy=job.policy,
        version=job.version,
        parent=job.parent.version,
        base_model=job.base_model,
        base_fingerprint="f",
        sha256={name: hashlib.sha256(name.encode()).hexdigest() for name in FILES},
        settings=job.settings,
        metrics=METRICS,
        probe=[],
    )
    with publication(job.target, job.run) as folder:
        for name in FILES:
            (folder / name).write_bytes(name.encode())
        (folder / MANIFEST).write_text(manifest.model_dump_json())


def score(db: Database, group: Group, judge: Judge | None, min_spread: float) -> bool:
    """As a turn of the cycle scores a group; False: it needs a judge, and there is none."""
    if scoring.by_clients(db, group, min_spread, {}):
        return True
    if judge is None:
        return False
    scoring.by_judge(db, group, judge, scoring.seen(db, group, judge, Terms()), min_spread)
    return True


class Died(BaseException):
    """The trainer is killed at this place: nobody handles it."""


@dataclass
class FakeWorker:
    """Takes job folders as the update worker does, and publishes a manifest; or ends as ``plan`` says.

    ``plan`` has one word for each job: ``done``; ``failed``; ``refused`` (by no fault of the batch); ``failed late``
    (after it published); ``a fault``; ``died early`` and ``died late`` (the trainer with it; before and after it
    published).
    """

    plan: list[str] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    brought: list[list[str]] = field(default_factory=list)
    """The files of the parent in each job's folder."""

    def run(self, job_folder: Path) -> dict[str, float]:
        job = Job.read(job_folder)
        self.jobs.append(job)
        self.batches.append(Batch.load(job_folder / BATCH))
        assert job.parent.adapter in (None, job_folder / PARENT), "the job needs no other folder"
        self.brought.append(sorted(path.name for path in job_folder.glob(f"{PARENT}/*")))
        step = self.plan.pop(0) if self.plan else "done"
        if step == "died early":
            assert job.target is not None
            job.target.with_name(f"{job.target.name}.tmp-{job.run}").mkdir(parents=True)
            raise Died
        if step == "refused":
            raise UpdateFailed("the parent adapter does not fit", blames_batch=False)
        if step == "failed":
            raise UpdateFailed("the loss is not a number")
        if step == "a fault":
            raise ZeroDivisionError("division by zero")
        publish(job)
        if step == "failed late":
            raise UpdateFailed("the update worker was killed by SIGKILL")
        if step == "died late":
            raise Died
        return METRICS


class Workshop(Recorded):
    """Recorded sessions, and what the trainer makes of them."""

    def __init__(self, folder: Path, upstream: str) -> None:
        super().__init__(folder)
        self.upstream = upstream
        self.worker = FakeWorker()

    def settings(self, **changes: Any) -> TrainerSettings:
        values: dict[str, Any] = {
            "data": self.folder,
            "upstream": self.upstream,
            "group": {"size": 4, "min_size": 2, "max_wait": 1e10},  # what is recorded here is old
            "trainer": {"groups": 1},
            "judge": {"backoff": 0},
        }
        return TrainerSettings(**{**values, **changes})

    def training(self, **changes: Any) -> TrainingRuns:
        return TrainingRuns(self.db, self.settings(**changes), self.worker)

    def cycle(self, judge: Judge | None = None, /, **changes: Any) -> Cycle:
        return Cycle(self.db, self.settings(**changes), judge, self.training(**changes))

    def closed(self, name: str, *, reward: float | None = None, owner: str = DEFAULT_OWNER, **start: Any) -> Session:
        """A session of one call, whose answer's token is 3, that has ended."""
        tokens = start.pop("tokens", capture([1, 2], [3]))
        who = identity(name, owner)
        self.call(call_start(name, identity=who, **start), f"work of {name}", tokens)
        if reward is not None:
            self.reward(a_reward(name, reward, identity=who))
        self.close(name, ClosedBy.ENDED, owner)
        self.take_in()
        found = sessions.newest(self.db, who)
        assert found is not None
        return found

    def many(self, rewards: Sequence[float | None], scenario: str = "task", **start: Any) -> list[Session]:
        names = [f"{scenario}-{number:02}-{new_id()}" for number in range(len(rewards))]  # their alphabet's order
        return [
            self.closed(name, reward=reward, scenario=scenario, **start)
            for name, reward in zip(names, rewards, strict=True)
        ]

    def group(self, members: Sequence[Session]) -> Group:
        name = GroupId(new_id())
        assert groups.claim(self.db, name, members, BEGAN)
        return groups.get(self.db, name)

    def outcome(self, session: Session | SessionKey) -> tuple[str, str | None, str | None] | None:
        """What became of a session: outcome, reason, run."""
        key = session.key if isinstance(session, Session) else session
        row = self.db.first("SELECT outcome, reason, run FROM outcomes WHERE session = ?", (key,))
        return (row["outcome"], row["reason"], row["run"]) if row else None

    def ask(self, scenario: str | None = None, **settings: Any) -> RunRequest:
        """Ask for a run, as the proxy does."""
        request = RunRequest(RunId(new_id()), scenario, settings, time.time())
        runs.request(self.db, request)
        return request

    def all_runs(self) -> list[Run]:
        return [runs.get(self.db, RunId(row["id"])) for row in self.db.all("SELECT id FROM runs ORDER BY rowid")]

    def a_version(self, number: int) -> None:
        """A run that brought version ``number``, as if trained earlier."""
        self.db.insert(
            "runs",
            id=f"earlier {number}",
            kind="train",
            state="succeeded",
            requested_at=BEGAN,
            ended_at=BEGAN,
            parent=VersionNumber(number - 1),
            version=number,
            settings="{}",
            metrics=json.dumps(METRICS),
        )
        publish(
            Job(
                kind="train",
                run=f"earlier {number}",
                version=number,
                policy="policy",
                base_model="/models/small",
                parent=Parent(version=number - 1),
                target=self.folder / "adapters" / f"policy@{number}",
            )
        )
