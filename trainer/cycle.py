"""One turn of the background: sort out sessions, form groups, score them, train."""

from __future__ import annotations

import time

from storage import calls, coordination, groups, runs, sessions
from storage.database import Database
from storage.states import GroupState, Outcome
from storage.types import GroupId, RunId, RunRequest, Session, SessionKey, new_id
from trainer import scoring, sequences
from trainer.errors import BatchInvalid, JudgeUnreachable
from trainer.groups import choose
from trainer.judge import Judge
from trainer.settings import TrainerSettings
from trainer.training_runs import TrainingRuns

NO_JUDGE = (
    "no judge is configured, and not every session of a group has a reward of its own: set SLIPSTREAM_JUDGE_BASE_URL "
    "and SLIPSTREAM_JUDGE_MODEL"
)


class Cycle:
    def __init__(self, db: Database, settings: TrainerSettings, judge: Judge | None, training: TrainingRuns) -> None:
        self._db = db
        self._settings = settings
        self._judge = judge
        self._training = training
        self._looked_at: set[SessionKey] = set()
        """Waiting sessions that were found to have something to train on."""

    def turn(self) -> None:
        """Do whatever can be done now. A pause stops all but the runs that were asked for."""
        requests = runs.requests(self._db)
        if coordination.is_paused(self._db) and not requests:
            coordination.say(self._db, "paused", "resume")
            return
        coordination.say(self._db, "forming groups")
        self.form(asked=bool(requests))
        problem = self.score()
        for request in requests:
            coordination.say(self._db, f"training run {request.id}", problem=problem)
            self._training.carry_out(request)
        if not requests and self.enough():
            request = RunRequest(RunId(new_id()), None, {}, time.time())
            coordination.say(self._db, f"training run {request.id}", problem=problem)
            self._training.carry_out(request)
        coordination.say(self._db, "waiting", self.waits_for(), problem)

    def is_due(self) -> bool:
        """Whether there is work that need not wait for the next turn."""
        if runs.requests(self._db):
            return True
        if coordination.is_paused(self._db):
            return False
        waiting = sessions.waiting(self._db)
        return bool(choose(waiting, self._settings.group, time.time(), asked=False))

    def enough(self) -> bool:
        """Whether the scored groups start a run by themselves."""
        scored = groups.in_state(self._db, GroupState.SCORED)
        overdue = any(time.time() - group.created_at > self._settings.group.max_wait for group in scored)
        return len(scored) >= self._settings.trainer.groups or overdue

    def form(self, *, asked: bool) -> None:
        usable = [session for session in sessions.waiting(self._db) if self._is_usable(session)]
        now = time.time()
        for members in choose(usable, self._settings.group, now, asked=asked):
            # A session that a call has just opened again is left for the next turn, with its neighbours.
            groups.claim(self._db, GroupId(new_id()), members, now)
            self._looked_at.difference_update(member.key for member in members)

    def _is_usable(self, session: Session) -> bool:
        """Whether a session can teach something; else it ends here, with its reason."""
        behind = runs.steps_behind(self._db, session.version)
        reason = None
        if behind > self._settings.max_staleness:
            reason = f"stale: sampled {behind} versions before the newest"
        elif session.key not in self._looked_at:
            reason = self._nothing_to_train(session)
        if reason is not None:
            with self._db.transaction():
                sessions.set_outcome(self._db, session.key, Outcome.SKIPPED, reason, None, time.time())
            self._looked_at.discard(session.key)
            return False
        self._looked_at.add(session.key)
        return True

    def _nothing_to_train(self, session: Session) -> str | None:
        try:
            trajectory = sequences.trajectory(calls.of_session(self._db, session.key))
        except BatchInvalid as error:
            return f"its tokens cannot be trained: {error}"
        if trajectory.sequences:
            return None
        if session.split == "eval" and trajectory.last_call is not None:
            return None
        reasons = "; ".join(dict.fromkeys(trajectory.left_out.values())) or "it has no calls"
        return f"nothing to train on: {reasons}"

    def score(self) -> str | None:
        """Score the groups that are ready. Returns what keeps the judge from it, in words."""
        judge, problem = self._judge, None
        for group in groups.in_state(self._db, GroupState.READY):
            coordination.say(self._db, f"scoring group {group.id}", problem=problem)
            try:
                if not scoring.score(self._db, group, judge, self._settings.group.min_spread):
                    problem = problem or NO_JUDGE
            except JudgeUnreachable as unreachable:
                # The groups that need no judge do not wait for it.
                judge, problem = None, str(unreachable)
        return problem

    def waits_for(self) -> str:
        """What the next run waits for, in words."""
        scored = len(groups.in_state(self._db, GroupState.SCORED))
        ready = len(groups.in_state(self._db, GroupState.READY))
        waiting = len(sessions.waiting(self._db))
        return (
            f"{self._settings.trainer.groups} scored groups: there are {scored}, and {ready} that wait for the judge; "
            f"{waiting} closed sessions wait for others of their scenario"
        )
