"""A training run: from scored groups to a published version, or to the reason why there is none.

The version number, and the groups that the run consumes, are recorded before the job is handed over. So whatever dies
in between, the next start knows which folder the run may have left: it is adopted by its manifest, or the run has
failed and its groups wait for the next one.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError
from safetensors import SafetensorError

from storage import groups, replays, runs, sessions
from storage.database import Database
from storage.states import GroupState, Outcome, RunState
from storage.text import counted
from storage.types import Group, GroupId, Owner, Run, RunRequest, VersionNumber, version_name
from storage.update_settings import UpdateSettings
from trainer import parents, replay, scoring, weights
from trainer.errors import BatchInvalid, NoWeights, OtherBase, Untrainable, UpdateFailed
from trainer.jobs import Job
from trainer.material import Gathering, Material
from trainer.publication import Manifest, published
from trainer.settings import TrainerSettings
from trainer.tracking import Tracking

_log = logging.getLogger("slipstream.trainer")

_STOPPED = "the trainer stopped during this run; its groups wait for the next one"
_ENOUGH_FAILURES = 3
"""Failed runs after which a group is taken for their cause."""


class Worker(Protocol):
    """Does a job: `trainer.worker.UpdateWorker`."""

    def run(self, job_folder: Path) -> dict[str, float]:
        """The job's metrics. Raises `UpdateFailed`."""
        ...


class TrainingRuns:
    def __init__(self, db: Database, settings: TrainerSettings, worker: Worker) -> None:
        self._db = db
        self._settings = settings
        self._worker = worker
        self._tracking = Tracking(db, settings)
        self.notes: tuple[str, ...] = ()
        """What was wrong with the last run's parent, with those that would have come first, or with its trackers."""

    def close(self) -> None:
        """What trackers still hold is written."""
        self._tracking.close()

    def adopt(self) -> None:
        """End what is under way although nobody works on it: by what it published, or by the lack of it.

        The last trainer may have died in the middle, or the database may have taken no end of a run. Nothing new
        begins before, since a run that is under way has groups that are still `scored`.
        """
        for run in runs.in_state(self._db, RunState.REQUESTED):
            self._fail(run, "the trainer stopped before this run began: ask again")
        for run in runs.in_state(self._db, RunState.RUNNING):
            self._settle(run, _STOPPED, blames_batch=False)
            self._clean(run)
        # A trainer that died behind the end of its run has left the job.
        for left in (self._settings.data / "jobs").glob("*"):
            shutil.rmtree(left, ignore_errors=True)

    def carry_out(self, request: RunRequest) -> Run:
        """Train on every scored group that the request names; returns the ended run."""
        with self._db.transaction():
            run = runs.create(self._db, request)
        try:
            settings = UpdateSettings(**{**self._settings.train.model_dump(exclude={"agents"}), **request.settings})
            scored = groups.in_state(self._db, GroupState.SCORED, request.scenario)
            fresh = [group for group in scored if self._is_fresh(group, run)]
            again = self._to_replay(fresh, request.scenario) if settings.replay else []
            base_model = weights.root(self._settings) if fresh or again else ""
            weights.require_trainable(base_model)
            vocabulary = weights.vocabulary(base_model)
            fingerprint = weights.fingerprint(base_model)
            choice = parents.choose(self._db, self._settings, fingerprint)
            divide = settings.divide_by_deviation
            samplers = parents.Samplers(self._settings, fingerprint)
            gathering = Gathering(self._db, run.id, self._settings.train.agents, samplers, vocabulary, divide)
            material = gathering.gather(fresh, again)
        except ValidationError as error:
            problem = error.errors()[0]
            return self._end(run, RunState.FAILED, f"setting {'.'.join(map(str, problem['loc']))}: {problem['msg']}")
        except (BatchInvalid, NoWeights, OtherBase, Untrainable) as error:
            return self._end(run, RunState.FAILED, str(error))
        if material is None:
            which = f" of scenario {request.scenario}" if request.scenario else ""
            return self._end(run, RunState.SKIPPED, f"no scored group{which} waits to be trained; {self._missing()}")
        run = self._start(run, material, settings, choice)
        assert run.version is not None
        job = Job(
            kind="train",
            run=run.id,
            version=run.version,
            policy=self._settings.policy,
            base_model=base_model,
            base_fingerprint=fingerprint,
            parent=choice.parent,
            samplers=samplers.adapters(material.batch.recomputed_under - {choice.parent.version}),
            settings=settings,
            target=self._target(run),
        )
        self._train(run, job, material, choice.notes)
        self._clean(run)
        return runs.get(self._db, run.id)

    def _to_replay(self, fresh: Sequence[Group], scenario: str | None) -> list[Group]:
        """The groups to train again: ``fresh`` ones, and those without variance, do not reach what they hold."""
        new: defaultdict[tuple[Owner, str], list[GroupId]] = defaultdict(list)
        for group in fresh:
            if group.split == "train":
                new[group.owner, group.scenario].append(group.id)
        for without_variance, owner, of_scenario in replays.without_variance(self._db, scenario):
            new[owner, of_scenario].append(without_variance)
        return [
            groups.get(self._db, chosen)
            for (owner, of_scenario), of_kind in new.items()
            for chosen in replay.choose(
                replays.of_scenario(self._db, owner, of_scenario),
                of_kind,
                lambda version: runs.steps_behind(self._db, version),
                self._settings.max_staleness,
            )
        ]

    def obstacle(self) -> str | None:
        """Why no run could begin now, in words."""
        try:
            base_model = weights.root(self._settings)
            weights.require_trainable(base_model)
            parents.choose(self._db, self._settings, weights.fingerprint(base_model))
        except (NoWeights, OtherBase, Untrainable) as error:
            return str(error)
        return None

    def _is_fresh(self, group: Group, run: Run) -> bool:
        """Whether the newest version is not too far from what sampled the group; else it is skipped."""
        behind = max(sessions.steps_behind(self._db, member.session) for member in group.members)
        if behind > self._settings.max_staleness:
            scoring.skip(self._db, group, f"stale: sampled {counted(behind, 'version')} before the newest", run.id)
            return False
        return True

    def _start(self, run: Run, material: Material, settings: UpdateSettings, choice: parents.Choice) -> Run:
        self.notes = choice.notes
        for note in choice.notes:
            _log.warning("run %s: %s", run.id, note)
        with self._db.transaction():
            parent = VersionNumber(choice.parent.version)
            runs.reserve_version(self._db, run.id, parent, settings.model_dump(), time.time())
            groups.set_consumed(self._db, run.id, [group.id for group in material.groups])
            replays.record(self._db, run.id, [group.id for group in material.replayed])
        return runs.get(self._db, run.id)

    def _train(self, run: Run, job: Job, material: Material, notes: tuple[str, ...]) -> None:
        try:
            job.write(self._job_folder(run), material.batch)
            metrics: dict[str, Any] = dict(self._worker.run(self._job_folder(run)))
        except UpdateFailed as failed:
            self._settle(run, failed.reason, blames_batch=failed.blames_batch)
        except (OSError, SafetensorError) as error:
            self._fail(run, f"the job could not be written: {error}", blames_batch=False)
        except Exception as error:
            self._settle(run, f"{type(error).__name__}: {error}")
            raise
        else:
            self._succeed(run, {**metrics, "notes": list(notes)} if notes else metrics)

    def _succeed(self, run: Run, metrics: dict[str, Any]) -> None:
        now = time.time()
        taken = self._consumed(run)
        if not taken and groups.consumed_by(self._db, run.id):
            shutil.rmtree(self._target(run), ignore_errors=True)
            self._fail(run, "its groups were trained or skipped without it: what it published was removed")
            return
        with self._db.transaction():
            runs.end(self._db, run.id, RunState.SUCCEEDED, None, metrics, now)
            for group in taken:
                groups.move(self._db, group, GroupState.TRAINED, run=run.id)
                for member in groups.free_members(self._db, group):
                    sessions.set_outcome(self._db, member.session, Outcome.TRAINED, None, run.id, now)
        self._tell(run)

    def _consumed(self, run: Run) -> list[Group]:
        """The groups that the run took and that still wait for their end."""
        return [group for group in groups.consumed_by(self._db, run.id) if group.state is GroupState.SCORED]

    def _settle(self, run: Run, reason: str, *, blames_batch: bool = True) -> None:
        """End a run that did not come to its end by itself: by what it published, or for ``reason``."""
        manifest: Manifest | None = None
        try:
            manifest = published(self._target(run), run.id)
        except UpdateFailed as foreign:
            reason = f"{reason}; {foreign}"
        if manifest is None:
            self._fail(run, reason, blames_batch=blames_batch)
            return
        self._succeed(run, manifest.metrics)
        _log.info("run %s had published its version (%s): adopted", run.id, reason)

    def _fail(self, run: Run, reason: str, *, blames_batch: bool = True) -> None:
        _log.error("run %s failed: %s", run.id, reason)
        self._end(run, RunState.FAILED, reason, blames_batch=blames_batch)
        for group in self._consumed(run):
            failures = groups.failed_runs(self._db, group.id)
            if failures >= _ENOUGH_FAILURES:
                scoring.skip(self._db, group, f"{counted(failures, 'run')} failed with it: {reason}", run.id)

    def _end(self, run: Run, state: RunState, reason: str, *, blames_batch: bool = True) -> Run:
        with self._db.transaction():
            if not blames_batch:
                groups.acquit(self._db, run.id)
            runs.end(self._db, run.id, state, reason, {}, time.time())
        self._tell(run)
        return runs.get(self._db, run.id)

    def _tell(self, run: Run) -> None:
        self.notes += tuple(self._tracking.tell(runs.get(self._db, run.id)))

    def _missing(self) -> str:
        waiting = len(sessions.waiting(self._db))
        ready = len(groups.in_state(self._db, GroupState.READY))
        size = self._settings.group
        return (
            f"without scores yet: {counted(ready, 'group')}; without {size.min_size} to {size.size} of one scenario: "
            f"{counted(waiting, 'closed session')}"
        )

    def _target(self, run: Run) -> Path:
        assert run.version is not None
        return self._settings.adapters / version_name(self._settings.policy, run.version)

    def _job_folder(self, run: Run) -> Path:
        return self._settings.data / "jobs" / run.id

    def _clean(self, run: Run) -> None:
        shutil.rmtree(self._job_folder(run), ignore_errors=True)
        target = self._target(run)
        # What a worker that was killed had begun to write; see `trainer.publication`.
        shutil.rmtree(target.with_name(f"{target.name}.tmp-{run.id}"), ignore_errors=True)
