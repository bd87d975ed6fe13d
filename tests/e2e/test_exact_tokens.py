"""Promise 4: what the trainer computes for the recorded tokens is what vLLM sampled them with."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from storage import calls
from storage.database import Database
from storage.types import SessionKey, VersionNumber
from tests.e2e.conftest import Report
from tests.e2e.judge import REWARDED
from tests.e2e.service import Service
from tests.e2e.training import play
from trainer.batches import Batch, Sequence
from trainer.jobs import SCORES, Job, Parent
from trainer.sequences import trajectory
from trainer.worker import UpdateWorker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

MEAN_ABSOLUTE, MEAN, TOKENS, FAR = 0.08, 0.01, 500, 0.15

SESSIONS_EACH = 100
COMPARED_BY_VLLM = 200
"""Sequences; vLLM is slow with the logprobs of prompts."""

Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def recorded(service: Service, live: VersionNumber) -> list[Sequence]:
    """Answers of the newest version at temperature 1, as the database holds them."""
    jobs = list(REWARDED) * SESSIONS_EACH
    with ThreadPoolExecutor(16) as pool:
        sessions = list(pool.map(lambda choice: play(service, choice, evaluate=True), jobs))
    service.wait_recorded(sessions)
    db = Database(service.data)
    sequences: list[Sequence] = []
    for session in sessions:
        key = service.rows("SELECT key FROM sessions WHERE session_id = ?", session)[0]["key"]
        of_session = calls.of_session(db, SessionKey(key))
        assert [call.version for call in of_session] == [live]
        sequences += trajectory(of_session).sequences
    db.close()
    return sequences


@pytest.fixture(scope="module")
def live(service: Service, trained: list[dict[str, Any]]) -> VersionNumber:
    """The newest version of the short training that all end-to-end tests share."""
    name: str = service.admin("GET", "/status")["live"]
    return VersionNumber(int(name.partition("@")[2]))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpdateWorker]:
    started = UpdateWorker(tmp_path_factory.mktemp("worker") / "worker.log")
    yield started
    started.close()


def scored(worker: UpdateWorker, sequences: list[Sequence], parent: Parent, model: Path, folder: Path) -> Floats:
    """The trainer's logprobs of the trained tokens, under the sampling that each was drawn with."""
    job = Job(kind="score", run="score", version=0, policy="policy", base_model=str(model), parent=parent)
    batch = Batch(tuple(sequences), np.zeros(len(sequences), dtype=np.float32))
    job.write(folder, batch)
    worker.run(folder)
    logprobs: Floats = load_file(folder / SCORES)["logprobs"]
    found: Floats = logprobs[np.concatenate([s.trained for s in sequences])]
    return found


def agree(recorded: Floats, recomputed: Floats) -> bool:
    """The check of promise 4."""
    assert len(recorded) >= TOKENS
    delta = recorded - recomputed
    return bool(np.abs(delta).mean() <= MEAN_ABSOLUTE and abs(delta.mean()) <= MEAN)


def by_vllm(service: Service, sequences: list[Sequence], model: str) -> Floats:
    """vLLM's own logprobs of the same tokens at temperature 1, under ``model``."""

    def ask(sequence: Sequence) -> list[float]:
        ids = sequence.ids.tolist()
        body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        answer = httpx.post(f"{service.vllm_url}/v1/completions", json=body, timeout=120).raise_for_status()
        logprobs = answer.json()["choices"][0]["prompt_logprobs"]
        return [logprobs[p][str(ids[p])]["logprob"] for p in np.flatnonzero(sequence.trained)]

    with ThreadPoolExecutor(16) as pool:
        return np.array([value for row in pool.map(ask, sequences) for value in row], dtype=np.float32)


def test_recorded_and_recomputed_logprobs_agree_under_the_version_that_sampled(
    service: Service,
    recorded: list[Sequence],
    live: VersionNumber,
    worker: UpdateWorker,
    small_model: Path,
    tmp_path: Path,
    report: Report,
) -> None:
    adapter = service.data / "adapters" / f"policy@{live}"
    theirs = np.concatenate([s.logprobs[s.trained] for s in recorded])
    ours = scored(worker, recorded, Parent(version=live, adapter=adapter), small_model, tmp_path / "own")
    delta = theirs - ours
    figures = f"{len(delta)} tokens, mean |Δ| {np.abs(delta).mean():.4f}, mean Δ {delta.mean():+.4f}"
    report(figures)
    assert agree(theirs, ours), figures


def test_the_check_fails_under_a_version_that_is_far_away(
    service: Service,
    recorded: list[Sequence],
    live: VersionNumber,
    worker: UpdateWorker,
    small_model: Path,
    tmp_path: Path,
) -> None:
    some = recorded[:COMPARED_BY_VLLM]
    own, other = by_vllm(service, some, f"policy@{live}"), by_vllm(service, some, "SmolLM2-135M-Instruct")
    distance = float(np.abs(own - other).mean())
    assert distance > FAR, f"the base is only {distance:.3f} away: train longer"
    theirs = np.concatenate([s.logprobs[s.trained] for s in recorded])
    under_base = scored(worker, recorded, Parent(version=0), small_model, tmp_path / "base")
    assert not agree(theirs, under_base)
