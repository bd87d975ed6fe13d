"""One turn of the background: sort out sessions, form groups, score them, train."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from storage import coordination, groups, replays, runs, sessions
from storage.database import Database
from storage.states import GroupState
from storage.text import counted
from storage.types import Group, RunId, RunRequest, new_id
from trainer import scoring
from trainer.judge import Judge
from trainer.judging import Judging
from trainer.pool import Pool
from trainer.settings import TrainerSettings
from trainer.training_runs import TrainingRuns


class Cycle:
    def __init__(self, db: Database, settings: TrainerSettings, judge: Judge | None, training: TrainingRuns) -> None:
        self._db = db
        self._settings = settings
        self._judging = Judging(db, settings, judge)
        self._has_judge = judge is not None
        self._training = training
        self._pool = Pool(db, settings)
        self.rewards_due: float | None = None
        """When the first of the groups that wait for their clients' rewards has waited long enough."""
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Begin nothing new; what is under way comes to its end. From any thread."""
        self._stopped.set()

    @property
    def due(self) -> float | None:
        """When the first of the groups that wait to be scored need wait no longer."""
        return min((due for due in (self.rewards_due, self._judging.due) if due is not None), default=None)

    def turn(self) -> None:
        """Do whatever can be done now. A pause stops all but the runs that were asked for."""
        self._training.adopt()
        requests = runs.requests(self._db)
        if coordination.is_paused(self._db) and not requests:
            coordination.say(self._db, "paused", "resume")
            return
        coordination.say(self._db, "forming groups")
        asked = {request.scenario for request in requests}
        self._pool.form(time.time(), asked=asked)
        problem = self.score(asked=asked)
        if not requests and self.enough():
            if obstacle := self._training.obstacle():
                problem = obstacle
            else:
                requests = [RunRequest(RunId(new_id()), None, {}, time.time())]
        for request in requests:
            if self._stopped.is_set():
                return
            coordination.say(self._db, f"training run {request.id}", problem=problem)
            self._training.carry_out(request)
        problem = "; ".join(filter(None, (problem, *self._training.notes))) or None
        coordination.say(self._db, "waiting", self.waits_for(), problem)

    def is_due(self, db: Database) -> bool:
        """Whether there is work that need not wait for the next turn; ``db`` as for `Pool.is_due`."""
        return bool(runs.requests(db)) or (not coordination.is_paused(db) and self._pool.is_due(db))

    def enough(self) -> bool:
        """Whether the scored groups start a run by themselves."""
        scored = groups.states(self._db).get(GroupState.SCORED, 0)
        oldest = groups.oldest(self._db, GroupState.SCORED)
        overdue = oldest is not None and time.time() - oldest > self._settings.group.max_wait
        # Where all are alike, what is better than they may stand on record.
        alike = len(replays.without_variance(self._db)) if self._settings.train.replay else 0
        return scored + alike >= self._settings.trainer.groups or overdue

    def score(self, *, asked: Collection[str | None] = ()) -> str | None:
        """Score the groups that are ready. Returns what keeps the judge from it, in words.

        Rewards that their clients have still time to give are waited for, but for a run that was ``asked`` for.
        """
        self.rewards_due = None
        least, weights = self._settings.group.min_spread, self._settings.reward.weights
        unrewarded = []
        # Those that need no judge do not wait for it.
        for group in groups.in_state(self._db, GroupState.READY):
            if self._stopped.is_set():
                return None
            coordination.say(self._db, f"scoring group {group.id}")
            if not scoring.by_clients(self._db, group, least, weights) and not self._waits(group, asked):
                unrewarded.append(group)
        return self._judging.score(unrewarded, self._stopped)

    def _waits(self, group: Group, asked: Collection[str | None]) -> bool:
        """Whether the clients of a group have still time to give rewards."""
        due = groups.complete_since(self._db, group) + self._settings.reward.wait
        if due <= time.time() or None in asked or group.scenario in asked:
            return False
        self.rewards_due = min(due, self.rewards_due or due)
        return True

    def waits_for(self) -> str:
        """What the next run waits for, in words."""
        states = groups.states(self._db)
        scored, ready = (states.get(state, 0) for state in (GroupState.SCORED, GroupState.READY))
        waiting = sessions.count_waiting(self._db)
        judge = "the judge" if self._has_judge else "rewards of their clients, for there is no judge"
        return (
            f"{counted(self._settings.trainer.groups, 'scored group')}: there are {scored}, "
            f"and {ready} that wait for {judge}; closed sessions that wait for others of their scenario: {waiting}"
        )
