"""One turn of the background: sort out sessions, form groups, score them, train."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from storage import coordination, groups, replays, runs, sessions
from storage.database import Database
from storage.states import GroupState
from storage.text import counted
from storage.types import Group, GroupId, RunId, RunRequest, SessionKey, new_id
from trainer import scoring
from trainer.groups import Candidate, Rules
from trainer.judge import Judge
from trainer.judging import Judging
from trainer.settings import TrainerSettings
from trainer.sieve import Sieve
from trainer.training_runs import TrainingRuns


class Cycle:
    def __init__(self, db: Database, settings: TrainerSettings, judge: Judge | None, training: TrainingRuns) -> None:
        self._db = db
        self._settings = settings
        self._judging = Judging(db, settings, judge)
        self._has_judge = judge is not None
        self._training = training
        self._sieve = Sieve(db, settings)
        self._rules = Rules(settings.group, settings.max_staleness)
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
        self.form(asked=asked)
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

    def is_due(self) -> bool:
        """Whether there is work that need not wait for the next turn."""
        if runs.requests(self._db):
            return True
        if coordination.is_paused(self._db):
            return False
        waiting = [Candidate(session, 0) for session in sessions.waiting(self._db)]
        return bool(self._rules.choose(waiting, time.time()))

    def enough(self) -> bool:
        """Whether the scored groups start a run by themselves."""
        scored = groups.in_state(self._db, GroupState.SCORED)
        overdue = any(time.time() - group.created_at > self._settings.group.max_wait for group in scored)
        # Where all are alike, what is better than they may stand on record.
        alike = len(replays.without_variance(self._db)) if self._settings.train.replay else 0
        return len(scored) + alike >= self._settings.trainer.groups or overdue

    def form(self, *, asked: Collection[str | None] = ()) -> None:
        """Form groups; ``asked`` as for `Rules.choose`."""
        waiting = sessions.waiting(self._db)
        usable = [found for session in waiting if (found := self._sieve.candidate(session)) is not None]
        now = time.time()
        grouped: set[SessionKey] = set()
        for members in self._rules.choose(usable, now, asked=asked):
            # A session that a call has just opened again is left for the next turn, with its neighbours.
            groups.claim(self._db, GroupId(new_id()), members, now)
            grouped.update(member.key for member in members)
        self._sieve.forget(grouped)
        for one in usable:
            if one.session.key not in grouped and self._rules.is_lonely(one.session, now):
                self._sieve.end_lonely(one.session)

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
        scored = len(groups.in_state(self._db, GroupState.SCORED))
        ready = len(groups.in_state(self._db, GroupState.READY))
        waiting = len(sessions.waiting(self._db))
        judge = "the judge" if self._has_judge else "rewards of their clients, for there is no judge"
        return (
            f"{counted(self._settings.trainer.groups, 'scored group')}: there are {scored}, "
            f"and {ready} that wait for {judge}; closed sessions that wait for others of their scenario: {waiting}"
        )
