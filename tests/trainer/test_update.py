"""The parts of an update that need no real model: the job folder, the sums, publication, probe, process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from storage.update_settings import UpdateSettings
from tests.trainer.test_layouts import sequence
from trainer.batches import Batch
from trainer.errors import AdapterDamaged, BatchInvalid, JobInvalid, OtherBase, UpdateFailed
from trainer.fingerprints import base_fingerprint
from trainer.jobs import BATCH, FORMAT, OPTIMIZER, PARENT, Job, Parent
from trainer.probe import MOST_CANDIDATE_TOKENS, MOST_ROW_TOKENS, MOST_TOKENS, Probe
from trainer.publication import MANIFEST, Manifest, ProbeRow, manifest_of, publication, published, require_base
from trainer.update import _blames_batch, _in_words


def job(target: Path | None, **changed: Any) -> Job:
    fields: dict[str, Any] = {
        "kind": "train",
        "run": "run-1",
        "version": 1,
        "policy": "policy",
        "base_model": "/models/base",
        "parent": Parent(version=0),
        "target": target,
    }
    return Job(**(fields | changed))


def batch(count: int = 1, length: int = 3) -> Batch:
    rows = tuple(sequence([number, *range(length - 1)]) for number in range(count))
    return Batch(rows, np.linspace(-1, 1, count, dtype=np.float32))


def manifest(run: str) -> Manifest:
    return Manifest(
        run=run,
        policy="policy",
        version=1,
        parent=0,
        base_model="/models/base",
        base_fingerprint="f",
        sha256={},
        settings=UpdateSettings(),
        metrics={"loss": 0.5},
        probe=[],
    )


def test_a_policy_stays_with_its_base_model(tmp_path: Path) -> None:
    require_base(tmp_path, manifest("r"), "f")
    with pytest.raises(OtherBase, match="trained on another base model than the one that vLLM serves now"):
        require_base(tmp_path, manifest("r"), "g")


@pytest.mark.parametrize("damage", ["", "half", '{"run": "r"}'])
def test_a_damaged_manifest_of_the_parent_is_said(tmp_path: Path, damage: str) -> None:
    (tmp_path / MANIFEST).write_text(damage)
    with pytest.raises(AdapterDamaged, match=r"manifest\.json cannot be read"):
        manifest_of(tmp_path)


def test_a_job_brings_its_parent_with_it(tmp_path: Path) -> None:
    parent = tmp_path / "policy@1"
    parent.mkdir()
    for name in ("adapter_model.safetensors", OPTIMIZER):
        (parent / name).write_text(name)
    (parent / "a folder that somebody made").mkdir()
    named = Parent(version=1, adapter=parent)
    job(tmp_path / "policy@2", parent=named).write(tmp_path / "job", batch())
    moved = (tmp_path / "job").rename(tmp_path / "elsewhere")
    (parent / "adapter_model.safetensors").unlink()
    found = Job.read(moved).parent
    assert found == Parent(version=1, adapter=moved / PARENT)
    assert sorted(path.read_text() for path in (moved / PARENT).iterdir()) == ["adapter_model.safetensors", OPTIMIZER]
    job(tmp_path / "policy@2", parent=named.model_copy(update={"optimizer": False})).write(tmp_path / "job", batch())
    assert list((tmp_path / "job" / PARENT).iterdir()) == []


def test_a_job_brings_the_versions_under_which_it_recomputes(tmp_path: Path) -> None:
    for number in (1, 3):
        adapter = tmp_path / f"policy@{number}"
        adapter.mkdir()
        for name in ("adapter_model.safetensors", OPTIMIZER):
            (adapter / name).write_text(f"{name} {number}")
    named = {number: tmp_path / f"policy@{number}" for number in (1, 3)}
    job(tmp_path / "policy@4", samplers=named).write(tmp_path / "job", batch())
    moved = (tmp_path / "job").rename(tmp_path / "elsewhere")
    found = Job.read(moved).samplers
    assert found == {number: moved / "versions" / str(number) for number in (1, 3)}
    for number, folder in found.items():
        assert [path.read_text() for path in folder.iterdir()] == [f"adapter_model.safetensors {number}"]


def test_a_batch_of_an_earlier_format_recomputes_nothing(tmp_path: Path) -> None:
    batch().save(tmp_path / "batch")
    tensors = load_file(tmp_path / "batch")
    del tensors["recomputed"]
    save_file(tensors, tmp_path / "batch")
    assert Batch.load(tmp_path / "batch").recomputed_under == set()


def test_a_job_of_a_newer_version_is_refused_before_its_fields_are_read(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"format": FORMAT + 1, "work": "of another kind"}))
    with pytest.raises(JobInvalid, match=f"has the format {FORMAT + 1}, this worker knows those up to {FORMAT}"):
        Job.read(tmp_path)


def test_a_job_says_its_format(tmp_path: Path) -> None:
    job(tmp_path / "policy@1").write(tmp_path / "job", batch())
    assert json.loads((tmp_path / "job" / "job.json").read_text())["format"] == FORMAT


def test_a_job_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = job(tmp_path / "policy@1", settings=UpdateSettings(learning_rate=1e-4, loss="cispo"))
    written.write(tmp_path / "job", batch())
    assert Job.read(tmp_path / "job") == written
    assert Batch.load(tmp_path / "job" / BATCH).trained_tokens == 2
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["batch.safetensors", "job.json"]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"settings": {"learning_rat": 1e-4}}, r"settings\.learning_rat: Extra inputs are not permitted"),
        ({"settings": {"loss": "ppo"}}, r"settings\.loss: Input should be 'grpo' or 'cispo'"),
        ({"settings": {"steps": 0}}, r"settings\.steps: Input should be greater than or equal to 1"),
        ({"settings": {"learning_rate": 0}}, r"settings\.learning_rate"),
        ({"kind": "guess"}, "kind: Input should be 'train' or 'score'"),
        ({"kind": "score"}, "one of kind score none"),
        ({"target": "adapters/policy@1"}, "must be an absolute path"),
        ({"format": 0}, "format: Input should be greater than or equal to 1"),
        ({"format": "new"}, "format: Input should be a valid integer"),
        ({"surprise": 1}, "surprise: Extra inputs"),
    ],
)
def test_a_bad_job_is_refused_with_the_field(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    fields = json.loads(job(tmp_path / "policy@1").model_dump_json()) | changed
    (tmp_path / "job.json").write_text(json.dumps(fields))
    with pytest.raises(JobInvalid, match=text):
        Job.read(tmp_path)


def test_an_absent_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid, match="cannot be read"):
        Job.read(tmp_path)


def test_a_publication_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "adapters" / "policy@1"
    with publication(target, "run-1") as folder:
        (folder / MANIFEST).write_text(manifest("run-1").model_dump_json())
        assert folder.name == "policy@1.tmp-run-1"
        assert not target.exists()
    assert [path.name for path in target.parent.iterdir()] == ["policy@1"]
    found = published(target, "run-1")
    assert found is not None
    assert found.metrics == {"loss": 0.5}


def test_a_publication_that_fails_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "policy@1"

    def write() -> None:
        with publication(target, "run-1") as folder:
            (folder / "half").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "policy@1.tmp-run-1").mkdir()
    (tmp_path / "policy@1.tmp-run-1" / "half").write_text("half")
    with publication(tmp_path / "policy@1", "run-1") as folder:
        assert list(folder.iterdir()) == []


def test_a_version_is_never_written_twice(tmp_path: Path) -> None:
    target = tmp_path / "policy@1"
    assert published(target, "run-1") is None
    with publication(target, "run-1") as folder:
        (folder / MANIFEST).write_text(manifest("run-1").model_dump_json())
    with pytest.raises(UpdateFailed, match="made by the run run-1"):
        published(target, "run-2")
    (target / MANIFEST).write_text("half")
    with pytest.raises(UpdateFailed, match="manifest cannot be read"):
        published(target, "run-1")
    with pytest.raises(UpdateFailed, match="appeared while"), publication(target, "run-2"):
        pass


def recorded(count: int, length: int) -> Batch:
    """Sequences of which no two begin alike, with sources."""
    rows = tuple(
        replace(row, source=(f"call {number}", number)) for number, row in enumerate(batch(count, length).sequences)
    )
    return Batch(rows, np.ones(count, dtype=np.float32))


def moved(probe: Probe, move: Callable[[int, int], float]) -> list[ProbeRow]:
    """What is chosen when row r's trained token n moves by ``move(r, n)``."""
    before = [[-3.0] * row.trained_tokens for row in probe.rows]
    after = [[-3.0 + move(r, n) for n in range(len(values))] for r, values in enumerate(before)]
    return probe.compare(before, after)


def test_a_probe_takes_the_tokens_that_moved_most() -> None:
    probe = Probe.choose(recorded(4, 201))  # 800 trained tokens, of which 200 may be taken
    assert len(probe.rows) == 4
    rows = moved(probe, lambda row, at: (-1) ** at * (1 + row) * (at < 150))
    # 150 of the row that moved most, the first 50 of the next: those that lengthen a row least.
    found = {(row.call, row.choice): (len(row.positions), max(row.positions)) for row in rows}
    assert found == {("call 3", 3): (150, 150), ("call 2", 2): (50, 50)}
    assert all(abs(new - parent) >= 3 for row in rows for new, parent in zip(row.new, row.parent, strict=True))


def test_a_probe_keeps_to_its_bounds() -> None:
    for count, length in ((400, 3), (40, 60), (2, 3000), (9, 700)):
        probe = Probe.choose(recorded(count, length))
        assert len(probe.rows) == 1 or sum(map(len, probe.rows)) <= MOST_CANDIDATE_TOKENS
        rows = moved(probe, lambda _, at: float(at))  # the last tokens move most: they need the longest rows
        assert len(rows) == 1 or sum(max(row.positions) + 1 for row in rows) <= MOST_ROW_TOKENS
        assert 0 < sum(len(row.positions) for row in rows) <= MOST_TOKENS


def test_a_probe_takes_a_token_behind_the_same_ids_once() -> None:
    same = tuple(replace(sequence([1, 2, 3]), source=("call", number)) for number in range(5))
    branch = replace(sequence([1, 2, 4]), source=("other", 0))
    probe = Probe.choose(Batch((*same, branch), np.ones(6, dtype=np.float32)))
    assert len(probe.rows) == 2
    assert sorted(len(row.positions) for row in moved(probe, lambda *_: 1.0)) == [1, 2]


def test_a_probe_names_recorded_calls_alone() -> None:
    assert Probe.choose(batch()).rows == ()
    long = sequence([1, 2, 3, 4, 5], [False, False, True, False, False], temperature=0.5)
    (row,) = Probe.choose(Batch((replace(long, source=("c", 1)),), np.ones(1, dtype=np.float32))).rows
    assert row.ids.tolist() == [1, 2, 3]
    assert row.temperature.tolist() == [1, 1, 1]
    assert Probe((row,)).compare([[-1.0]], [[-0.5]])[0].model_dump() == {
        "call": "c",
        "choice": 1,
        "positions": [2],
        "parent": [-1.0],
        "new": [-0.5],
    }


def test_a_manifest_that_had_copied_the_ids_can_be_a_parents(tmp_path: Path) -> None:
    document = json.loads(manifest("r").model_dump_json())
    document["probe"] = [{"ids": [1, 2], "positions": [1], "parent": [-1.0], "new": [-2.0]}]
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    assert manifest_of(tmp_path).probe[0].call is None


def test_a_fingerprint_follows_config_and_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="no weights"):
        base_fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    first = base_fingerprint(tmp_path)
    assert base_fingerprint(tmp_path) == first
    (tmp_path / "README.md").write_text("not part of the model")
    assert base_fingerprint(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"weightS")
    second = base_fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("{ }")
    assert len({first, second, base_fingerprint(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BatchInvalid("the batch has no trained token"), "the batch has no trained token"),
        (OSError(28, "No space left on device", "/data/x"), "No space left on device: /data/x"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("boom"), "RuntimeError: boom"),
    ],
)
def test_reasons_are_words(error: Exception, words: str) -> None:
    assert _in_words(error) == words


@pytest.mark.parametrize(
    ("error", "blames"),
    [
        (JobInvalid("the parent adapter cannot be read"), False),
        (OSError(28, "No space left on device"), False),
        (UpdateFailed("a folder is there", blames_batch=False), False),
        (UpdateFailed("the loss is not a finite number"), True),
        (BatchInvalid("the batch has no trained token"), True),
        (RuntimeError("boom"), True),
    ],
)
def test_what_is_no_fault_of_the_batch_is_told_apart(error: Exception, blames: bool) -> None:
    assert _blames_batch(error) is blames


def test_the_worker_dies_with_its_parent(tmp_path: Path) -> None:
    """Its input stays open here, so that only the watch can notice, as while it imports its libraries."""
    start = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-m', 'trainer.update'], "
        "stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL); "
        "print(child.pid, flush=True); time.sleep(60)"
    )
    given, kept = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", start], stdin=given, stdout=subprocess.PIPE, cwd=tmp_path)
    assert parent.stdout is not None
    status = Path("/proc") / parent.stdout.readline().decode().strip() / "stat"
    time.sleep(1)
    assert status.exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.close(given)
    os.close(kept)
