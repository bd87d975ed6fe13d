"""The adapter folder of a version: written beside its place, made durable, then renamed into it.

::

    adapter_model.safetensors  adapter_config.json   what peft and vLLM load
    optimizer.safetensors                            AdamW's state, for the next update
    manifest.json                                    what made it, and how to recognise it (``Manifest``)

A folder under its own name is whole; whatever a crash left lies under ``<name>.tmp-<run>``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.update_settings import UpdateSettings
from trainer.errors import AdapterDamaged, OtherBase, UpdateFailed
from trainer.fingerprints import file_sha256

MANIFEST = "manifest.json"


class ProbeRow(BaseModel):
    """Logprobs at temperature 1 without truncation: of ``ids[p]`` given ``ids[:p]``, p in ``positions``.

    The ids stand in storage alone, so that a session which is deleted is gone: as the path of ``choice`` of ``call``.
    """

    model_config = ConfigDict(frozen=True)

    call: str | None = None
    """None: an older manifest, which had copied the ids."""
    choice: int = 0
    positions: list[int]
    parent: list[float]
    new: list[float]


class Manifest(BaseModel):
    """What a version says of itself."""

    model_config = ConfigDict(frozen=True)

    run: str
    policy: str
    version: int
    parent: int
    base_model: str
    base_fingerprint: str
    """``trainer.fingerprints.base_fingerprint``"""
    sha256: dict[str, str]
    """Of the two files that vLLM loads and of the optimizer state, hex, by name"""
    settings: UpdateSettings
    metrics: dict[str, float]
    probe: list[ProbeRow]


def published(target: Path, run: str) -> Manifest | None:
    """Return the manifest when this run has already published its target, None when nothing is there.

    Raises ``UpdateFailed`` when the folder belongs to somebody else: a version is never written twice.
    """
    if not target.exists():
        return None
    try:
        manifest = Manifest.model_validate_json((target / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise UpdateFailed(f"{target} exists and its manifest cannot be read: {error}", blames_batch=False) from error
    if manifest.run != run:
        raise UpdateFailed(f"{target} exists already, made by the run {manifest.run}", blames_batch=False)
    return manifest


def manifest_of(adapter: Path) -> Manifest:
    """Raises ``AdapterDamaged`` when the folder has no manifest that can be read."""
    path = adapter / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise AdapterDamaged(f"{path} cannot be read: {error}") from error


def require_sound(adapter: Path, manifest: Manifest, name: str) -> None:
    """Raises ``AdapterDamaged`` when the file ``name`` is not the one that the manifest was written for."""
    expected = manifest.sha256.get(name)
    if expected is None:
        return  # an older manifest does not name the optimizer state
    try:
        found = file_sha256(adapter / name)
    except OSError as error:
        raise AdapterDamaged(f"{adapter / name} cannot be read: {error.strerror or error}") from error
    if found != expected:
        raise AdapterDamaged(f"{adapter / name} has the sha256 {found}, its manifest says {expected}")


def require_base(adapter: Path, manifest: Manifest, fingerprint: str) -> None:
    """A policy is bound to its base model. Raises ``OtherBase`` when the adapter was trained on another one."""
    if manifest.base_fingerprint != fingerprint:
        raise OtherBase(
            f"the parent adapter {adapter} was trained on another base model than the one that vLLM serves now: "
            f"serve that model again, or begin a policy with a new SLIPSTREAM_POLICY or SLIPSTREAM_DATA"
        )


@contextmanager
def publication(target: Path, run: str) -> Iterator[Path]:
    """Give an empty folder to write to; rename it to ``target`` at the end, or remove it on any error."""
    staging = target.with_name(f"{target.name}.tmp-{run}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        for path in staging.iterdir():
            _sync(path)
        _sync(staging)
        if target.exists():
            raise UpdateFailed(f"{target} appeared while the run {run} was writing it", blames_batch=False)
        staging.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
