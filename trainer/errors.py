"""What can go wrong while a run is trained.

::

    TrainerError
    ├── BatchInvalid     a batch that cannot be trained: lengths, masks, numbers
    ├── JobInvalid       a job folder that cannot be read: kind, settings, adapter
    │   ├── OtherBase    the policy was trained on another base model than vLLM serves: no run can begin
    │   └── Untrainable  the base model's weights cannot be trained as they are: no run can begin
    ├── UpdateFailed     a job that was taken and ended without a result; ``reason`` says why in words
    │   └── WorkerClosed the trainer was stopped meanwhile
    ├── JudgeUnreachable the judge answers nobody, until it is back or the settings are mended: all groups wait
    ├── JudgeSilent      no answer for this group now, by a timeout or a fault of the judge: the group waits
    ├── JudgeRefused     the judge's answer for this group cannot be used: the group is skipped
    │   └── JudgeTooLong the group does not fit into the judge's context: it is asked with less, if that can be
    ├── NoWeights        nobody tells where the base model's weights lie
    ├── AdapterDamaged   an adapter folder is not what its manifest says: another parent is taken
    └── AlreadyRunning   another trainer, or what one left, works on the same data folder

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
    """A job without a result: bad numbers, a dead worker, no room on the disk. Nothing was published.

    ``blames_batch``: whether what was to be learned may be the cause; else it is a folder, the disk or the trainer.
    """

    def __init__(self, reason: str, *, blames_batch: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blames_batch = blames_batch


class WorkerClosed(UpdateFailed):
    """The trainer was stopped during the job."""

    def __init__(self) -> None:
        super().__init__("the update worker was closed during the job", blames_batch=False)


class JudgeUnreachable(TrainerError):
    """The judge does not answer, or refuses to talk to us at all; the text says what to check."""


class JudgeSilent(TrainerError):
    """The judge broke off over this group; it may answer for others, and for this one later."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        """Seconds that it asks us to wait."""


class JudgeRefused(TrainerError):
    """An answer without a usable score for every attempt; the text says what is wrong with it."""


class JudgeTooLong(JudgeRefused):
    """The judge says that the request has too many tokens."""


class NoWeights(TrainerError):
    """No vLLM server says which weights it serves; the text says what to set."""


class AdapterDamaged(TrainerError):
    """An adapter folder that is missing or is not what its manifest says; the text says in what."""


class OtherBase(JobInvalid):
    """A policy is bound to its base model, and vLLM serves another one; the text says what to do."""


class Untrainable(JobInvalid):
    """The base model is quantised in a way that cannot be trained here; the text says what to do."""


class AlreadyRunning(TrainerError):
    """One trainer per data folder."""
