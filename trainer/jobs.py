"""The job folder of an update: all that the worker needs, but the base model's files (named by path and fingerprint).

::

    job.json            what to do (``Job``)
    batch.safetensors   what to learn from (``trainer.batches.Batch``)
    parent/             the parent adapter with its manifest and AdamW's state; none where it is the base model
    versions/3/         the adapter of another version that sampled tokens whose logprobs are computed again
    scores.safetensors  the result of a job of kind ``score``: logprobs float32, one per token of the batch

This module is free of torch: the trainer's loop writes the folder, the update worker reads it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from storage.update_settings import UpdateSettings
from trainer.batches import Batch
from trainer.errors import JobInvalid

JOB = "job.json"
BATCH = "batch.safetensors"
SCORES = "scores.safetensors"
PARENT = "parent"
VERSIONS = "versions"
OPTIMIZER = "optimizer.safetensors"
"""AdamW's state, in the folder of an adapter."""
FORMAT = 4
"""Of the job folder; it grows with every change that an older worker would misunderstand."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Parent(_Strict):
    """The version that the update starts from. Without an adapter it is the base model itself."""

    version: int = Field(ge=0)
    adapter: Path | None = None
    """Its folder; in ``job.json`` relative to the job's."""
    optimizer: bool = True
    """Whether AdamW goes on with the state in that folder; else it begins anew."""


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
    base_fingerprint: str | None = None
    """``trainer.fingerprints.base_fingerprint``; the worker refuses other files. None: they were not at hand."""
    parent: Parent
    samplers: dict[int, Path] = Field(default_factory=dict)
    """By version, adapters other than the parent's under which logprobs are computed again; paths as ``parent``'s."""
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
        """Make the job folder: ``job.json`` last, so that a folder with it is whole."""
        folder.mkdir(parents=True, exist_ok=True)
        batch.save(folder / BATCH)
        parent = self.parent
        if parent.adapter is not None:
            _bring(parent.adapter, folder / PARENT, without=() if parent.optimizer else (OPTIMIZER,))
            parent = parent.model_copy(update={"adapter": Path(PARENT)})
        samplers = {version: Path(VERSIONS) / str(version) for version in self.samplers}
        for version, adapter in self.samplers.items():
            _bring(adapter, folder / samplers[version], without=(OPTIMIZER,))
        staging = folder / f".{JOB}"
        staging.write_text(self.model_copy(update={"parent": parent, "samplers": samplers}).model_dump_json(indent=2))
        staging.rename(folder / JOB)

    @classmethod
    def read(cls, folder: Path) -> Job:
        """The paths of its adapters are absolute then.

        Raises ``JobInvalid`` with the path and every field that does not fit, or a newer format.
        """
        try:
            text = (folder / JOB).read_bytes()
        except OSError as error:
            raise JobInvalid(f"{folder / JOB} cannot be read: {error}") from error
        _require_known(folder / JOB, text)
        try:
            job = cls.model_validate_json(text)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'job'}: {fault['msg']}" for fault in error.errors()
            )
            raise JobInvalid(f"{folder / JOB}: {faults}") from error
        base = folder.absolute()
        parent = job.parent
        if parent.adapter is not None:
            parent = parent.model_copy(update={"adapter": base / parent.adapter})
        samplers = {version: base / adapter for version, adapter in job.samplers.items()}
        return job.model_copy(update={"parent": parent, "samplers": samplers})


def _bring(adapter: Path, into: Path, without: tuple[str, ...]) -> None:
    """Have the files of an adapter in the job: by another name of the same bytes, for nobody changes a version's."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for path in adapter.iterdir():
        if path.name in without or not path.is_file():
            continue
        try:
            os.link(path, into / path.name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, into / path.name)


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
