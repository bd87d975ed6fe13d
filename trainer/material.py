"""What a run learns from: the sequences of scored groups, each with its advantage.

A member without a token that can be trained does not enter its group's mean, and ends with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from storage import calls, groups, sessions
from storage.database import Database
from storage.states import Outcome
from storage.types import Group, RunId, SessionKey
from trainer import scoring, sequences
from trainer.advantages import advantages
from trainer.batches import Batch, Sequence
from trainer.errors import BatchInvalid
from trainer.parents import Samplers

NO_VARIANCE = "no variance among the sessions that have tokens to train"


@dataclass(frozen=True, slots=True)
class Material:
    groups: tuple[Group, ...]
    replayed: tuple[Group, ...]
    """Those that were trained before."""
    batch: Batch


Lesson = list[tuple[tuple[Sequence, ...], float]]
"""A group's: of each of its members the sequences, and their advantage."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """From where material is taken, for one run."""

    db: Database
    run: RunId
    agents: Collection[str]
    """As for `sequences.why_not`."""
    samplers: Samplers
    vocabulary: int | None
    """How many tokens the base model knows; None: not known."""
    divide: bool = False
    """As for `advantages`."""

    def gather(self, scored: Iterable[Group], again: Iterable[Group] = ()) -> Material | None:
        """The material of ``scored`` groups, and of those to train ``again``; None where there is none.

        Scored groups that can teach nothing are skipped.
        """
        lessons: list[tuple[Group, Lesson, bool]] = []
        for group in scored:
            if lesson := self._lesson(group):
                lessons.append((group, lesson, False))
            else:
                scoring.skip(self.db, group, NO_VARIANCE, self.run)
        lessons += [(group, lesson, True) for group in again if (lesson := self._lesson_again(group))]
        if not lessons:
            return None
        rows = [
            (row, value, replayed)
            for _, lesson, replayed in lessons
            for of_member, value in lesson
            for row in of_member
        ]
        sequences_, values, replays = zip(*rows, strict=True)
        batch = Batch(sequences_, np.array(values, dtype=np.float32), np.array(replays))
        new, old = ([group for group, _, replayed in lessons if replayed is which] for which in (False, True))
        return Material(tuple(new), tuple(old), batch)

    def _lesson(self, group: Group) -> Lesson:
        """Empty where the group teaches nothing. Members that cannot be trained end here."""
        kept = []
        for member in groups.free_members(self.db, group):
            found, reason = self._paths(member.session)
            if reason is not None:
                with self.db.transaction():
                    sessions.set_outcome(self.db, member.session, Outcome.SKIPPED, reason, self.run, time.time())
            elif member.reward is not None:
                kept.append((found, member.reward))
        return self._weighed(kept)

    def _lesson_again(self, group: Group) -> Lesson:
        """As it was, without what can no longer be read."""
        trained = groups.trained_members(self.db, group)
        kept = [(self._paths(member.session)[0], member.reward) for member in trained if member.reward is not None]
        return self._weighed(kept) if any(found for found, _ in kept) else []

    def _weighed(self, members: Many[tuple[tuple[Sequence, ...], float]]) -> Lesson:
        found = advantages([reward for _, reward in members], divide=self.divide) or ()
        return [(of_member, value) for (of_member, _), value in zip(members, found, strict=bool(found))]

    def _paths(self, session: SessionKey) -> tuple[tuple[Sequence, ...], str | None]:
        """The session's sequences; none, and the reason, where it has none that can be trained."""
        try:
            recorded = calls.of_session(self.db, session)
            lost = self.samplers.lost(sequences.recomputed_under(recorded))
            found = sequences.trajectory(recorded, self.agents, lost)
        except BatchInvalid as error:
            return (), f"its tokens cannot be trained: {error}"
        if not found.sequences:
            return (), found.nothing
        if self.vocabulary is not None and any(row.ids.max() >= self.vocabulary for row in found.sequences):
            return (), f"a token id of it is not below {self.vocabulary}, the number of tokens that the model knows"
        return found.sequences, None
