"""The version that a run starts from: the newest that is not rejected and whose folder is what its manifest says.

And those that sampled what it learns from, where their own logprobs are wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from storage import runs
from storage.database import Database
from storage.types import BASE, VersionNumber, version_name
from trainer.errors import AdapterDamaged, OtherBase
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


class Samplers:
    """The adapters of the versions under which logprobs are computed again. The files of each are read once."""

    def __init__(self, settings: TrainerSettings, fingerprint: str | None) -> None:
        """``fingerprint``: as for `choose`."""
        self._settings = settings
        self._fingerprint = fingerprint
        self._faults: dict[VersionNumber, str | None] = {BASE: None}

    def lost(self, versions: Iterable[VersionNumber]) -> dict[VersionNumber, str]:
        """Those whose adapter is missing or damaged, each with the reason."""
        return {version: fault for version in versions if (fault := self._fault(version))}

    def adapters(self, versions: Iterable[int]) -> dict[int, Path]:
        """The folder of each; the base model has none."""
        return {version: self._folder(VersionNumber(version)) for version in versions if version != BASE}

    def _fault(self, version: VersionNumber) -> str | None:
        if version not in self._faults:
            try:
                _sound(self._folder(version), self._fingerprint)
            except (AdapterDamaged, OtherBase) as fault:
                self._faults[version] = str(fault)
            else:
                self._faults[version] = None
        return self._faults[version]

    def _folder(self, version: VersionNumber) -> Path:
        return self._settings.adapters / version_name(self._settings.policy, version)


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
