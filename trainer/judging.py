"""When the judge is asked: not before a group is due, not beyond the day's budget, and never for long in vain.

A group for which it gave no answer goes behind all others and waits longer each time. A judge that answers for others
meanwhile is not down: then the silence is counted, and after some the group is skipped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from storage import coordination, judging
from storage.database import Database
from storage.types import Group
from trainer import scoring
from trainer.errors import JudgeSilent, JudgeUnreachable
from trainer.judge import Judge
from trainer.settings import TrainerSettings

NO_JUDGE = (
    "no judge is configured, and not every session of a group has a reward of its own: set SLIPSTREAM_JUDGE_BASE_URL "
    "and SLIPSTREAM_JUDGE_MODEL"
)
_ENOUGH_SILENCES = 8
"""Tries in which the judge could not answer for a group, after which the group is skipped."""
_MOST_IN_VAIN = 2
"""Silences in a turn in which nobody was answered, after which the judge is left alone until the next."""
_LONGEST_WAIT = 3600.0
_MOST_DOUBLINGS = 20


class Judging:
    def __init__(self, db: Database, settings: TrainerSettings, judge: Judge | None) -> None:
        self._db = db
        self._settings = settings
        self._judge = judge
        self.due: float | None = None
        """When the first of the groups that wait for another try may have it."""
        self._in_vain = 0
        """In how many turns, one after the other, the judge answered for none of several groups."""
        self._rests_until = 0.0
        """A judge that answers nobody is left alone for longer each time."""

    def score(self, waiting: Sequence[Group], stopped: threading.Event) -> str | None:
        """Have the judge score the groups. Returns what keeps it from one of them, in words."""
        self.due = None
        if not waiting:
            return None
        if self._judge is None:
            return NO_JUDGE
        if self._rests_until > time.time():
            self._wait_until(self._rests_until)
            return f"the judge answered for no group: it is asked again at {_clock(self._rests_until)} UTC"
        problem: str | None = None
        silent: list[tuple[Group, JudgeSilent]] = []
        before = self._judge.answers
        for group in sorted(waiting, key=lambda one: one.judge_due or 0.0):
            if stopped.is_set():
                return problem
            if group.judge_due is not None and group.judge_due > time.time():
                problem = problem or _waits(group)
                self._wait_until(group.judge_due)
                continue
            if over := self._over_budget():
                problem = over
                break
            coordination.say(self._db, f"scoring group {group.id}", problem=problem)
            try:
                self._score(group, self._judge)
            except JudgeUnreachable as unreachable:
                problem = str(unreachable)
                break
            except JudgeSilent as no_answer:
                silent.append((group, no_answer))
                problem = str(no_answer)
                if len(silent) >= _MOST_IN_VAIN and self._judge.answers == before:
                    break
        # A judge that answers none of several groups is down, which is no fault of theirs.
        is_down = bool(silent) and self._judge.answers == before and len(waiting) > 1
        for group, silence in silent:
            self._put_off(group, silence, not is_down)
        self._in_vain = self._in_vain + 1 if is_down else 0
        if self._in_vain:
            self._rests_until = time.time() + self._wait(self._in_vain - 1)
            self._wait_until(self._rests_until)
        return problem

    def _wait(self, times: int) -> float:
        """Seconds to wait when it was waited so often before."""
        return min(self._settings.judge.backoff * 2.0 ** min(times, _MOST_DOUBLINGS), _LONGEST_WAIT)

    def _over_budget(self) -> str | None:
        budget, spent = self._settings.judge.tokens_per_day, judging.spent(self._db, time.time())
        if budget is None or spent < budget:
            return None
        return (
            f"the judge's budget is spent: {spent} tokens today of {budget} (judge.tokens_per_day); groups without "
            "rewards of their own wait until 0:00 UTC"
        )

    def _score(self, group: Group, judge: Judge) -> None:
        terms, least = self._settings.judge.terms(group.scenario), self._settings.group.min_spread
        seen = scoring.seen(self._db, group, judge, terms)
        if not scoring.as_before(self._db, group, judge, seen, least):
            scoring.by_judge(self._db, group, judge, seen, least)

    def _put_off(self, group: Group, no_answer: JudgeSilent, counts: bool) -> None:
        silences = group.judge_silences + counts
        if silences >= _ENOUGH_SILENCES:
            scoring.skip(self._db, group, f"judge failed: {no_answer}")
            return
        asked = min(no_answer.retry_after or 0.0, _LONGEST_WAIT)
        due = time.time() + max(self._wait(group.judge_silences), asked)
        judging.silent(self._db, group.id, silences, due)
        self._wait_until(due)

    def _wait_until(self, due: float) -> None:
        self.due = min(due, self.due or due)


def _waits(group: Group) -> str:
    at = _clock(group.judge_due or 0.0)
    return f"the judge gave no answer for group {group.id}: it is asked again at {at} UTC"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at))
