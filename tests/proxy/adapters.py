"""Adapter folders as the trainer publishes them, and the runs that announce them."""

from __future__ import annotations

import hashlib
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from storage import bodies, retention, runs, versions
from storage.database import Database
from storage.states import RunState, VersionState
from storage.types import BASE, RunId, RunRequest, SessionKey, Version, VersionNumber, new_id, version_name
from tests.fake_vllm.engine import BASE_WEIGHTS, WEIGHTS, logprobs
from tests.proxy.running import until

POLICY = "policy"
_ROWS = {"a" * 32: list(range(10, 40)), "b" * 32: list(range(60, 100, 2))}
"""Recorded calls, each with its prompt and answer as one list of ids."""
_PROMPT = 5


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
        self._record()
        for call, ids in _ROWS.items():
            positions = list(range(_PROMPT, len(ids)))
            before, after = logprobs(self.weights(parent), ids), logprobs(self.weights(new), ids)
            rows.append(
                {
                    "call": call,
                    "choice": 0,
                    "positions": positions,
                    "parent": [before[p] for p in positions],
                    "new": [after[p] for p in positions],
                }
            )
        return rows

    def _record(self) -> None:
        """The calls that a probe names, each in a session of its own."""
        db = Database(self.data)
        with db.transaction():
            for call, ids in _ROWS.items():
                db.execute(
                    "INSERT OR IGNORE INTO sessions (owner, session_id, episode, split, state, version, opened_at,"
                    " last_call_at) VALUES ('default', ?, 0, 'train', 'skipped', 0, 1.0, 1.0)",
                    (f"of {call}",),
                )
                db.execute(
                    "INSERT OR IGNORE INTO calls (id, session, dialect, path, model, version, upstream, streamed,"
                    " outcome, started_at, ended_at, sampling, input, output, depth, request, response, prompt_ids)"
                    " SELECT ?, key, 'chat', '', '', 0, '', 0, 'complete', 1.0, 1.0, '{}', '[]', '[]', 0, 'W', 'W', ?"
                    " FROM sessions WHERE session_id = ?",
                    (call, bodies.encode_ids(array("i", ids[:_PROMPT]).tobytes(), None, {}, None), f"of {call}"),
                )
                db.execute(
                    "INSERT OR IGNORE INTO choices SELECT seq, 0, 'stop', ?, x'' FROM calls WHERE id = ?",
                    (array("i", ids[_PROMPT:]).tobytes(), call),
                )
        db.close()

    def delete_probed(self, number: int) -> None:
        """Delete the sessions of the first ``number`` calls that a probe names."""
        db = Database(self.data)
        with db.transaction():
            for call in list(_ROWS)[:number]:
                session = db.number("SELECT session FROM calls WHERE id = ?", (call,))
                retention.delete_part(db, SessionKey(session), 10)
        db.close()

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
