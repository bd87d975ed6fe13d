"""The trainer as a process: APScheduler turns the cycle, a heartbeat says that it lives."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import logging
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from storage import coordination, judging
from storage.database import Database, OperationalError
from storage.folders import make_private
from trainer.cycle import Cycle
from trainer.errors import AlreadyRunning
from trainer.judge import Judge
from trainer.settings import TrainerSettings
from trainer.training_runs import TrainingRuns
from trainer.worker import UpdateWorker, await_orphan

_log = logging.getLogger("slipstream.trainer")

_BEAT_SECONDS = 2.0
_WATCH_SECONDS = 0.5
_JOBS = 3
"""Heartbeat, watch and cycle: each has a thread."""


class _Threads(BasePoolExecutor):  # type: ignore[misc]  # the library has no types
    """Threads that somebody else waits for."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__(pool)


class Trainer:
    """Owns the scheduler, the cycle, the judge's client and the update worker."""

    def __init__(self, settings: TrainerSettings, worker: UpdateWorker) -> None:
        self._settings = settings
        # The heartbeat and the watch must not wait for the cycle's transactions: one connection for each job.
        self._db, self._beat_db, self._watch_db = (Database(settings.data, durable=settings.fsync) for _ in range(3))
        self._worker = worker
        self._training = training = TrainingRuns(self._db, settings, self._worker)
        coordination.beat(self._beat_db, time.time())
        self._judge = _judge(settings)
        judging.describe(self._db, self._judge.name if self._judge else None, settings.judge.tokens_per_day)
        self._cycle = Cycle(self._db, settings, self._judge, training)
        self._watcher = Cycle(self._watch_db, settings, None, training)
        self._turning = threading.Lock()
        self._rests_until = 0.0
        """After a failure: work that is due waits for the next turn."""
        self._threads = ThreadPoolExecutor(_JOBS)
        self._scheduler = BackgroundScheduler(
            timezone="UTC",
            executors={"default": _Threads(self._threads)},
            job_defaults={"coalesce": True, "max_instances": 1},
        )

    def start(self) -> None:
        add = self._scheduler.add_job
        add(self._beat, "interval", seconds=_BEAT_SECONDS, id="heartbeat")
        add(self._watch, "interval", seconds=_WATCH_SECONDS, id="watch")
        now = datetime.datetime.now(datetime.UTC)
        add(self._turn, "interval", seconds=self._settings.trainer.interval, id="cycle", next_run_time=now)
        self._scheduler.start()

    def stop(self) -> None:
        """End what is under way: a run in the worker is lost, and its groups wait for the next one."""
        self._cycle.stop()  # first: with the worker closed, nothing new may begin
        self._worker.close()
        # Where the scheduler itself waits for its jobs, it holds the lock that they need to ask it anything.
        self._scheduler.shutdown(wait=False)
        self._threads.shutdown(wait=True)
        if self._judge is not None:
            self._judge.close()
        self._training.close()
        for db in (self._db, self._beat_db, self._watch_db):
            db.close()

    def _beat(self) -> None:
        with _busy_is_no_fault("heartbeat"):
            job = self._scheduler.get_job("cycle")
            due = job.next_run_time.timestamp() if job is not None and job.next_run_time else None
            coordination.beat(self._beat_db, time.time(), due)

    def _watch(self) -> None:
        with _busy_is_no_fault("watch"):
            rested = time.monotonic() >= self._rests_until
            if rested and not self._turning.locked() and self._watcher.is_due():
                self._turn_at(time.time())

    def _turn(self) -> None:
        with self._turning, _busy_is_no_fault("cycle"):
            try:
                self._cycle.turn()
                if self._cycle.due is not None:
                    self._turn_at(self._cycle.due)
            except OperationalError:
                raise
            except Exception as error:  # noqa: BLE001 - the edge of the background: said, and tried again
                _log.exception("the cycle failed; it is tried again")
                self._rests_until = time.monotonic() + self._settings.trainer.interval
                coordination.say(self._db, "waiting", problem=f"the cycle failed ({type(error).__name__}: {error})")

    def _turn_at(self, due: float) -> None:
        """Not only at the next interval."""
        job = self._scheduler.get_job("cycle")
        if job is not None and job.next_run_time and job.next_run_time.timestamp() > due:
            with contextlib.suppress(JobLookupError):  # the scheduler has stopped
                self._scheduler.modify_job("cycle", next_run_time=datetime.datetime.fromtimestamp(due, datetime.UTC))


def serve(settings: TrainerSettings) -> None:
    """Run the trainer until SIGTERM or SIGINT. Raises `AlreadyRunning` when another one works on this data folder."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with only_one(settings):
        lock = settings.data / ".update-worker.lock"
        await_orphan(lock)
        trainer = Trainer(settings, UpdateWorker(settings.logs / "update-worker.log", lock=lock))
        trainer.start()
        stopped.wait()
        trainer.stop()


@contextlib.contextmanager
def only_one(settings: TrainerSettings) -> Iterator[None]:
    make_private(settings.data)
    with (settings.data / ".trainer.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(f"another trainer works on {settings.data}: stop it first") from None
        yield


@contextlib.contextmanager
def _busy_is_no_fault(what: str) -> Iterator[None]:
    """A locked database is tried again at the next turn."""
    try:
        yield
    except OperationalError as error:
        _log.warning("the %s could not use the database: %s", what, error)


def _judge(settings: TrainerSettings) -> Judge | None:
    if not settings.judge_base_url or not settings.judge_model:
        return None
    key = settings.judge_api_key
    return Judge(settings.judge_base_url, settings.judge_model, key.get_secret_value() if key else None)
