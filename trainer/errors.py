"""What can go wrong while a run is trained.

::

    TrainerError
    ├── BatchInvalid     a batch that cannot be trained: lengths, masks, numbers
    ├── JobInvalid       a job folder that cannot be read: kind, settings, adapter
    ├── UpdateFailed     a job that was taken and ended without a result; ``reason`` says why in words
    │   └── WorkerClosed the trainer was stopped meanwhile
    ├── JudgeUnreachable the judge answers nobody, until it is back or the settings are mended: all groups wait
    ├── JudgeSilent      no answer for this group now, by a timeout or a fault of the judge: the group waits
    ├── JudgeRefused     the judge's answer for this group cannot be used: the group is skipped
    │   └── JudgeTooLong the group does not fit into the judge's context: it is asked with less, if that can be
    ├── NoWeights        nobody tells where the base model's weights lie
    └── AlreadyRunning   another trainer works on the same data folder

The first two are faults of whoever wrote the folder; the others are outcomes, recorded with the run or the group.
"""

from __future__ import annotations


class TrainerError(Exception):
    """Base of everything that the trainer raises on purpose."""


class BatchInvalid(TrainerError):
    """A batch that no update may see; the text names the sequence, what is wrong and what was expected."""


class JobInvalid(TrainerError):
    """A job folder whose ``job.json``, settings or parent adapter do not fit."""


class UpdateFailed(TrainerError):
    """A job without a result: bad numbers, a dead worker, no room on the disk. Nothing was published."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerClosed(UpdateFailed):
    """The trainer was stopped during the job."""

    REASON = "the update worker was closed during the job"

    def __init__(self) -> None:
        super().__init__(self.REASON)


class JudgeUnreachable(TrainerError):
    """The judge does not answer, or refuses to talk to us at all; the text says what to check."""


class JudgeSilent(TrainerError):
    """The judge broke off over this group; it may answer for others, and for this one later."""


class JudgeRefused(TrainerError):
    """An answer without a usable score for every attempt; the text says what is wrong with it."""


class JudgeTooLong(JudgeRefused):
    """The judge says that the request has too many tokens."""


class NoWeights(TrainerError):
    """No vLLM server says which weights it serves; the text says what to set."""


class AlreadyRunning(TrainerError):
    """One trainer per data folder."""
