"""The update worker with real Unsloth and the small model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from storage.update_settings import UpdateSettings
from trainer.batches import Batch, Sequence
from trainer.errors import UpdateFailed
from trainer.fingerprints import file_sha256
from trainer.jobs import SCORES, Job, Parent
from trainer.publication import MANIFEST, Manifest
from trainer.worker import UpdateWorker

pytestmark = pytest.mark.e2e

PROMPTS = (
    "<|im_start|>user\nIs the sky blue? Answer yes, no or maybe.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWill it rain tomorrow? Answer yes, no or maybe.<|im_end|>\n<|im_start|>assistant\n",
)
ANSWERS = ("Yes, it is.", "No.", "Maybe", "I am not sure.")
GOOD = "Maybe"


def rollout(tokenizer: Any, prompt: str, answer: str, number: int) -> Sequence:
    before, after = tokenizer.encode(prompt), [*tokenizer.encode(answer), tokenizer.eos_token_id]
    trained = np.array([False] * len(before) + [True] * len(after))
    return Sequence(
        ids=np.array(before + after, dtype=np.int32),
        trained=trained,
        logprobs=np.zeros(len(trained), dtype=np.float32),
        temperature=np.ones(len(trained), dtype=np.float32),
        top_p=np.ones(len(trained), dtype=np.float32),
        top_k=np.zeros(len(trained), dtype=np.int32),
        version=np.zeros(len(trained), dtype=np.int32),
        source=("call", number),
    )


@pytest.fixture(scope="module")
def unscored(small_model: Path) -> Batch:
    """Give 48 rollouts of which one answer is good, without their logprobs."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(small_model)
    pairs = [(prompt, answer) for prompt in PROMPTS for answer in ANSWERS] * 6
    rows = tuple(rollout(tokenizer, *pair, number) for number, pair in enumerate(pairs))
    return Batch(rows, np.array([0.75 if answer == GOOD else -0.25 for _, answer in pairs], dtype=np.float32))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpdateWorker]:
    worker = UpdateWorker(tmp_path_factory.mktemp("logs") / "update.log", silence_s=120)
    yield worker
    process = worker._process
    worker.close()
    assert process is None or process.returncode == 0  # it left by itself at the end of its input


class Bench:
    """A data folder in which jobs are made and versions appear."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model

    def target(self, version: int) -> Path:
        return self.root / "adapters" / f"policy@{version}"

    def job(self, batch: Batch, version: int, parent: int = 0, *, kind: Any = "train", **settings: Any) -> Path:
        folder = self.root / "jobs" / f"{kind}-{version}-{parent}"
        Job(
            kind=kind,
            run=f"run-{version}",
            version=version,
            policy="policy",
            base_model=str(self.model),
            parent=Parent(version=parent, adapter=self.target(parent) if parent else None),
            settings=UpdateSettings(**settings),
            target=self.target(version) if kind == "train" else None,
        ).write(folder, batch)
        return folder

    def manifest(self, version: int) -> Manifest:
        return Manifest.model_validate_json((self.target(version) / MANIFEST).read_bytes())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Bench:
    return Bench(tmp_path_factory.mktemp("data"), small_model)


def score(worker: UpdateWorker, bench: Bench, batch: Batch, version: int) -> list[np.ndarray]:
    """Return the logprobs of each sequence's tokens under a version."""
    folder = bench.job(batch, version + 100, version, kind="score")
    worker.run(folder)
    logprobs = load_file(folder / SCORES)["logprobs"]
    parts = np.split(logprobs, np.cumsum([len(row) for row in batch.sequences])[:-1])
    assert all((part[~row.trained] == 0).all() for part, row in zip(parts, batch.sequences, strict=True))
    return parts


@pytest.fixture(scope="module")
def batch(bench: Bench, worker: UpdateWorker, unscored: Batch) -> Batch:
    """Kill the worker in its first job; then let it find the rollouts' logprobs under the base."""

    def kill(stage: str, done: int, of: int) -> None:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(UpdateFailed, match=r"killed by SIGKILL \(out of memory\?\)"):
        worker.run(bench.job(unscored, 1), kill)
    assert not bench.target(1).exists()
    scores = score(worker, bench, unscored, 0)
    rows = [replace(row, logprobs=part) for row, part in zip(unscored.sequences, scores, strict=True)]
    return Batch(tuple(rows), unscored.advantages)


@pytest.fixture(scope="module")
def versions(bench: Bench, worker: UpdateWorker, batch: Batch) -> dict[int, dict[str, float]]:
    """Train three versions, one from the other."""
    return {version: worker.run(bench.job(batch, version, version - 1)) for version in (1, 2, 3)}


def test_good_answers_become_likelier(
    versions: dict[int, dict[str, float]], worker: UpdateWorker, bench: Bench, batch: Batch
) -> None:
    good = batch.advantages > 0
    after = np.array([part.sum() for part in score(worker, bench, batch, 3)])
    gain = after - np.array([row.logprobs.sum() for row in batch.sequences])
    assert gain[good].mean() > 0.5
    assert gain[good].mean() > gain[~good].mean() + 0.5


def test_the_metrics_say_what_was_done(versions: dict[int, dict[str, float]], batch: Batch) -> None:
    first = versions[1]
    assert first["sequences"] == 48
    assert first["rows"] == 8
    assert first["trained_tokens"] == batch.trained_tokens
    assert first["grad_norm"] > 0
    assert 0 < first["entropy"] < 11
    assert abs(first["kl"]) <= first["mean_abs_logprob_diff"]
    assert first["mean_abs_logprob_diff"] < 0.01  # the logprobs are its own
    assert versions[3]["mean_abs_logprob_diff"] > 0.05
    assert first["tokens_laid_out"] < first["tokens"] / 10
    assert 0 < first["seconds_forward"] < first["seconds_update"]
    phases = first["seconds_load"] + first["seconds_update"] + first["seconds_probe"]
    assert phases < first["seconds_total"]
    assert first["mean_trained_length"] == batch.trained_tokens / 48


def test_the_folder_holds_what_the_manifest_says(
    versions: dict[int, dict[str, float]], bench: Bench, small_model: Path
) -> None:
    names = {path.name for path in bench.target(1).iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "manifest.json", "optimizer.safetensors"}
    assert not list(bench.target(1).parent.glob("*.tmp-*"))
    manifest = bench.manifest(2)
    assert (manifest.run, manifest.policy, manifest.version, manifest.parent) == ("run-2", "policy", 2, 1)
    assert manifest.base_model == str(small_model)
    assert manifest.metrics == versions[2]
    assert manifest.sha256 == {name: file_sha256(bench.target(2) / name) for name in names - {MANIFEST}}
    assert [versions[version]["optimizer_continued"] for version in (1, 2, 3)] == [0.0, 1.0, 1.0]


def test_a_job_done_again_by_hand_gives_the_same_adapter(
    versions: dict[int, dict[str, float]], bench: Bench, batch: Batch, tmp_path: Path
) -> None:
    job = shutil.move(bench.job(batch, 2, 1), tmp_path / "job")
    command = [sys.executable, "-m", "trainer.update", str(job), str(tmp_path / "result")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "done"
    assert (
        Manifest.model_validate_json((tmp_path / "result" / MANIFEST).read_bytes()).sha256 == bench.manifest(2).sha256
    )


def test_the_optimizer_goes_on_where_its_parent_stopped(versions: dict[int, dict[str, float]], bench: Bench) -> None:
    states = [load_file(bench.target(version) / "optimizer.safetensors") for version in (1, 2, 3)]
    assert [float(state["step"]) for state in states] == [1, 2, 3]
    name = next(name for name in states[0] if name.startswith("exp_avg.") and "lora_B" in name)
    assert not np.array_equal(states[0][name], states[1][name])


@pytest.mark.filterwarnings("ignore")  # peft imports torchao, which warns
def test_the_published_adapter_answers_as_the_probe_says(
    versions: dict[int, dict[str, float]], bench: Bench, small_model: Path, batch: Batch
) -> None:
    """peft, in plain transformers, loads the folder and finds the trainer's logprobs."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.bfloat16)
    model = PeftModel.from_pretrained(base, str(bench.target(3)), adapter_name="v3")
    model.load_adapter(str(bench.target(2)), adapter_name="v2")

    head = base.get_output_embeddings().weight.detach().float()

    def answers(version: int) -> np.ndarray:
        model.set_adapter(f"v{version}")
        found = []
        with torch.no_grad():
            for row in bench.manifest(3).probe:
                # Logits in float32: rounded to bfloat16 they alone are off by up to 0.06.
                ids = batch.sequences[row.choice].ids[: max(row.positions) + 1].tolist()
                hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0].float()
                logprobs = (hidden @ head.T).log_softmax(-1)
                found += [float(logprobs[at - 1, ids[at]]) for at in row.positions]
        return np.array(found)

    parent = np.concatenate([row.parent for row in bench.manifest(3).probe])
    new = np.concatenate([row.new for row in bench.manifest(3).probe])
    served_parent, served_new = answers(2), answers(3)
    assert np.abs(served_new - new).mean() < 0.08
    assert np.abs(served_parent - parent).mean() < 0.08
    moved = new - parent
    slope = float(moved @ (served_new - served_parent) / (moved @ moved))
    assert 0.7 < slope < 1.3


def test_a_result_is_taken_up_again_and_a_foreign_one_refused(
    versions: dict[int, dict[str, float]], bench: Bench, worker: UpdateWorker, batch: Batch
) -> None:
    written = (bench.target(1) / MANIFEST).stat().st_mtime_ns
    assert worker.run(bench.job(batch, 1)) == versions[1]
    assert (bench.target(1) / MANIFEST).stat().st_mtime_ns == written
    folder = bench.job(batch, 1)
    stranger = json.loads((folder / "job.json").read_text()) | {"run": "run-of-somebody-else"}
    (folder / "job.json").write_text(json.dumps(stranger))
    with pytest.raises(UpdateFailed, match="exists already, made by the run run-1"):
        worker.run(folder)


def test_bad_numbers_and_bad_folders_publish_nothing(
    versions: dict[int, dict[str, float]], bench: Bench, worker: UpdateWorker, batch: Batch
) -> None:
    poisoned = bench.target(7)
    poisoned.mkdir()
    weights = load_file(bench.target(1) / "adapter_model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: np.full_like(weights[name], np.nan)}, poisoned / "adapter_model.safetensors")
    (poisoned / "adapter_config.json").write_bytes((bench.target(1) / "adapter_config.json").read_bytes())
    with pytest.raises(UpdateFailed, match="the loss is not a finite number"):
        worker.run(bench.job(batch, 8, 7))
    assert worker.pid is None, "a process whose job failed is replaced"
    with pytest.raises(UpdateFailed, match=r"has \{'r': 16, 'lora_alpha': 32\}, the settings ask for"):
        worker.run(bench.job(batch, 8, 1, rank=8, alpha=16))
    pid = worker.pid
    with pytest.raises(UpdateFailed, match="cannot be read"):
        worker.run(bench.root / "absent")
    assert {path.name for path in bench.target(1).parent.iterdir()} == {f"policy@{version}" for version in (1, 2, 3, 7)}
    options = {"steps": 2, "kl_weight": 0.1, "micro_batch_tokens": 64}
    metrics = worker.run(bench.job(batch, 9, 3, **options))  # all of it works again, with the rarer options
    assert metrics["dropped_sequences"] >= 0
    assert worker.pid == pid


@pytest.mark.filterwarnings("ignore")  # peft imports torchao, which warns
def test_every_layout_gives_what_a_plain_forward_gives(small_model: Path, unscored: Batch, tmp_path: Path) -> None:
    """Prefix tree, stems, padded rows and rows alone, against transformers in float32 without Unsloth."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    few = Batch(unscored.sequences[2:6], unscored.advantages[2:6])
    few.save(tmp_path / "batch.safetensors")
    script = str(Path(__file__).parent / "layout_figures.py")
    command = [sys.executable, script, str(small_model), str(tmp_path / "batch.safetensors")]
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    printed = subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env=environment).stdout
    figures = {name: np.array(values) for name, values in json.loads(printed.splitlines()[-1]).items()}
    base = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(tmp_path))
    plain = []
    with torch.no_grad():
        for row in few.sequences:
            logits = model(torch.tensor(row.ids[None], dtype=torch.long)).logits[0].log_softmax(-1)
            plain += [float(logits[at - 1, int(row.ids[at])]) for at in np.flatnonzero(row.trained)]
    for name in ("tree", "stems", "padded", "alone"):
        assert figures[name] == pytest.approx(np.array(plain), abs=1e-3)
        difference = figures[f"{name}_gradient"] - figures["alone_gradient"]
        assert np.abs(difference).max() < 1e-3 * np.abs(figures["alone_gradient"]).max()
    assert np.abs(figures["bfloat16"] - np.array(plain)).mean() < 0.08
