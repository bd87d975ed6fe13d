"""What a run learns from: the sequences of scored groups, each with its advantage.

A member without a token that can be trained does not enter its group's mean, and ends with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
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
    batch: Batch


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

    def gather(self, scored: Iterable[Group]) -> Material | None:
        """The material of ``scored`` groups; None where there is none. Groups that can teach nothing are skipped."""
        taken: list[Group] = []
        rows: list[Sequence] = []
        values: list[float] = []
        for group in scored:
            paths = {member.session: self._paths(member.session) for member in groups.free_members(self.db, group)}
            rewards = [m.reward for m in group.members if paths.get(m.session) and m.reward is not None]
            found = advantages(rewards, divide=self.divide)
            if found is None:
                scoring.skip(self.db, group, NO_VARIANCE, self.run)
                continue
            taken.append(group)
            kept = [paths[m.session] for m in group.members if paths.get(m.session)]
            for of_member, value in zip(kept, found, strict=True):
                rows += of_member
                values += [value] * len(of_member)
        return Material(tuple(taken), Batch(tuple(rows), np.array(values, dtype=np.float32))) if taken else None

    def _paths(self, session: SessionKey) -> tuple[Sequence, ...]:
        """The session's sequences; where it has none that can be trained, it ends here."""
        try:
            recorded = calls.of_session(self.db, session)
            lost = self.samplers.lost(sequences.recomputed_under(recorded))
            found = sequences.trajectory(recorded, self.agents, lost)
            reason = None if found.sequences else found.nothing
            if self.vocabulary is not None and any(row.ids.max() >= self.vocabulary for row in found.sequences):
                reason = f"a token id of it is not below {self.vocabulary}, the number of tokens that the model knows"
        except BatchInvalid as error:
            reason = f"its tokens cannot be trained: {error}"
        if reason is None:
            return found.sequences
        with self.db.transaction():
            sessions.set_outcome(self.db, session, Outcome.SKIPPED, reason, self.run, time.time())
        return ()
