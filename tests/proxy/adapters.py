"""Adapter folders as the trainer publishes them, and the runs that announce them."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from storage import runs, versions
from storage.database import Database
from storage.states import RunState, VersionState
from storage.types import BASE, RunId, RunRequest, Version, VersionNumber, new_id, version_name
from tests.fake_vllm.engine import BASE_WEIGHTS, WEIGHTS, logprobs
from tests.proxy.running import until

POLICY = "policy"
_ROWS = [list(range(10, 40)), list(range(60, 100, 2))]


@dataclass(frozen=True, slots=True)
class Trainer:
    """What the trainer does to a data folder when a run has succeeded."""

    data: Path

    def weights(self, number: int) -> bytes:
        """The weights of a version, which decide its logprobs."""
        return f"the weights of version {number}".encode() if number else BASE_WEIGHTS

    def publish(self, number: int, *, parent: int = BASE, probe: list[dict[str, Any]] | None = None) -> Path:
        """Write the folder of a version; then `announce` it."""
        folder = self.data / "adapters" / version_name(POLICY, VersionNumber(number))
        folder.mkdir(parents=True)
        (folder / WEIGHTS).write_bytes(self.weights(number))
        manifest = {
            "sha256": {WEIGHTS: hashlib.sha256(self.weights(number)).hexdigest()},
            "probe": self.probe(parent, number) if probe is None else probe,
        }
        (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
        return folder

    def probe(self, parent: int, new: int) -> list[dict[str, Any]]:
        """The probe of an adapter that moved as trained."""
        rows = []
        for ids in _ROWS:
            positions = list(range(5, len(ids)))
            before, after = logprobs(self.weights(parent), ids), logprobs(self.weights(new), ids)
            rows.append(
                {
                    "ids": ids,
                    "positions": positions,
                    "parent": [before[p] for p in positions],
                    "new": [after[p] for p in positions],
                }
            )
        return rows

    def announce(self, number: int, *, parent: int = BASE) -> RunId:
        """The run's row: succeeded, with this version."""
        db = Database(self.data)
        asked = RunRequest(RunId(new_id()), None, {}, time.time())
        with db.transaction():
            runs.request(db, asked)
            runs.create(db, asked)
            given = runs.reserve_version(db, asked.id, VersionNumber(parent), {}, time.time())
            assert given == number
            runs.end(db, asked.id, RunState.SUCCEEDED, None, {}, time.time())
        db.close()
        return asked.id

    def train(self, number: int, *, parent: int = BASE, probe: list[dict[str, Any]] | None = None) -> RunId:
        self.publish(number, parent=parent, probe=probe)
        return self.announce(number, parent=parent)

    def version(self, number: int) -> Version | None:
        """The version as the database has it; None before the proxy took it over."""
        db = Database(self.data)
        found = {version.number: version for version in versions.all_versions(db)}
        db.close()
        return found.get(VersionNumber(number))


def reaches(trainer: Trainer, number: int, state: VersionState) -> Version:
    """The version, once it is in ``state``."""

    def find() -> Version | None:
        version = trainer.version(number)
        return version if version is not None and version.state is state else None

    found = until(find)
    assert found is not None
    return found
