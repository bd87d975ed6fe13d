"""The version that a run starts from: the newest that is not rejected and whose folder is what its manifest says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage import runs
from storage.database import Database
from storage.types import BASE, version_name
from trainer.errors import AdapterDamaged
from trainer.jobs import OPTIMIZER, Parent
from trainer.publication import Manifest, manifest_of, require_base, require_sound
from trainer.settings import TrainerSettings


@dataclass(frozen=True, slots=True)
class Choice:
    """A parent, and what is wrong with those that would have come first, in words."""

    parent: Parent
    notes: tuple[str, ...] = ()


def choose(db: Database, settings: TrainerSettings, fingerprint: str | None) -> Choice:
    """The parent of the next run. ``fingerprint``: of the base model's files, where they are at hand.

    A version whose weights are damaged is passed over for the newest sound one below it; where there is none, the base
    model is the parent. Without a sound optimizer state AdamW begins anew. Reads the whole folder of the parent.

    Raises ``OtherBase``.
    """
    notes: list[str] = []
    version = runs.newest_version(db)
    while version != BASE:
        folder = settings.adapters / version_name(settings.policy, version)
        try:
            manifest = _sound(folder, fingerprint)
        except AdapterDamaged as damaged:
            notes.append(f"{version_name(settings.policy, version)} is passed over as a parent: {damaged}")
            version = runs.newest_version(db, below=version)
            continue
        lack = _lack_of_optimizer(folder, manifest)
        if lack:
            notes.append(f"the optimizer begins anew: {lack}")
        return Choice(Parent(version=version, adapter=folder, optimizer=lack is None), tuple(notes))
    return Choice(Parent(version=BASE), tuple(notes))


def _sound(folder: Path, fingerprint: str | None) -> Manifest:
    """The manifest of a folder whose weights are those that were published."""
    manifest = manifest_of(folder)
    if fingerprint is not None:
        require_base(folder, manifest, fingerprint)
    for name in manifest.sha256.keys() - {OPTIMIZER}:
        require_sound(folder, manifest, name)
    return manifest


def _lack_of_optimizer(folder: Path, manifest: Manifest) -> str | None:
    try:
        require_sound(folder, manifest, OPTIMIZER)
    except AdapterDamaged as damaged:
        return str(damaged)
    return None if (folder / OPTIMIZER).exists() else f"{folder / OPTIMIZER} is missing"
