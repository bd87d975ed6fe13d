"""The job folder of an update: what the worker is to do; base model and parent adapter are named by their paths.

::

    job.json            what to do (``Job``)
    batch.safetensors   what to learn from (``trainer.batches.Batch``)
    scores.safetensors  the result of a job of kind ``score``: logprobs float32, one per token of the batch

This module is free of torch: the trainer's loop writes the folder, the update worker reads it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainer.batches import Batch
from trainer.errors import JobInvalid

JOB = "job.json"
BATCH = "batch.safetensors"
SCORES = "scores.safetensors"
FORMAT = 1
"""Of the job folder; it grows with every change that an older worker would misunderstand."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class UpdateSettings(_Strict):
    """The few dials of an update. Unknown names are refused."""

    learning_rate: float = Field(default=2e-4, gt=0)
    """2e-4 below 1B parameters (measured at 135M), 1e-5 to 5e-5 for large models."""
    loss: Literal["grpo", "cispo"] = "grpo"
    steps: int = Field(default=1, ge=1)
    """Optimizer steps; each is a pass over the whole batch."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    clip_high: float = Field(default=0.28, ge=0)
    """DAPO's higher bound of the ratio (arXiv 2503.14476), less 1. Only for the loss ``grpo``."""
    rank: int = Field(default=16, ge=1, le=512)
    """vLLM serves 1, 8, 16, 32, 64, 128, ..."""
    alpha: int = Field(default=32, ge=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    kl_weight: float = Field(default=0.0, ge=0)
    """Of the KL divergence to the base model. Above 0 it costs a second forward pass per step."""
    divide_by_deviation: bool = False
    """Whether a group's advantages are divided by the standard deviation of its rewards, as GRPO does."""
    least_entropy: float = Field(default=0.0, ge=0)
    """Nats per token, mean over the batch, below which a run fails: the policy repeats itself."""
    least_length: float = Field(default=0.0, ge=0)
    """Sampled tokens of a sequence, mean over the batch, below which a run fails: the policy says nothing."""
    most_grad_norm: float = Field(default=1000.0, gt=0)
    """Before the clip; above it a run fails, for the batch is not one to learn from."""
    micro_batch_tokens: int = Field(default=1024, ge=1)
    """Tokens that go through the model at once; a longer sequence goes alone. Bounds the memory."""


class Parent(_Strict):
    """The version that the update starts from. Without an adapter it is the base model itself."""

    version: int = Field(ge=0)
    adapter: Path | None = None


class Job(_Strict):
    """One piece of work for the update worker."""

    format: int = Field(default=FORMAT, ge=1, le=FORMAT)
    """The number of the folder's format, ``FORMAT`` of the program that wrote it."""
    kind: Literal["train", "score"]
    run: str = Field(min_length=1)
    version: int = Field(ge=0)
    """The number that the target bears."""
    policy: str
    base_model: str
    """A folder or the name on the Hugging Face hub."""
    parent: Parent
    settings: UpdateSettings = Field(default_factory=UpdateSettings)
    target: Path | None = None
    """The adapter folder to publish; only for ``train``."""

    @model_validator(mode="after")
    def _target_belongs_to_train(self) -> Job:
        if (self.kind == "train") != (self.target is not None):
            raise ValueError("a job of kind train names a target folder, one of kind score none")
        if self.target is not None and not self.target.is_absolute():
            raise ValueError(f"the target must be an absolute path, got {self.target}")
        return self

    def write(self, folder: Path, batch: Batch) -> None:
        """Make the job folder: the batch first, so that a folder with ``job.json`` is whole."""
        folder.mkdir(parents=True, exist_ok=True)
        batch.save(folder / BATCH)
        staging = folder / f".{JOB}"
        staging.write_text(self.model_dump_json(indent=2))
        staging.rename(folder / JOB)

    @classmethod
    def read(cls, folder: Path) -> Job:
        """Raises ``JobInvalid`` with the path and every field that does not fit, or a newer format."""
        try:
            text = (folder / JOB).read_bytes()
        except OSError as error:
            raise JobInvalid(f"{folder / JOB} cannot be read: {error}") from error
        _require_known(folder / JOB, text)
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'job'}: {fault['msg']}" for fault in error.errors()
            )
            raise JobInvalid(f"{folder / JOB}: {faults}") from error


def _require_known(path: Path, text: bytes) -> None:
    """Refuse a newer format before its fields are looked at: they may be others."""
    try:
        fields = json.loads(text)
    except ValueError:
        return  # said by whoever reads the fields
    number = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(number, int) and number > FORMAT:
        raise JobInvalid(
            f"{path} has the format {number}, this worker knows those up to {FORMAT}: update Slipstream on this "
            "machine to the version that wrote the job"
        )
