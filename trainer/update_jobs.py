"""What the update worker does with a job folder: train an adapter, or score a batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from storage.types import BASE
from trainer.batches import Batch
from trainer.errors import AdapterDamaged, JobInvalid, TrainerError
from trainer.fingerprints import base_fingerprint, file_sha256
from trainer.jobs import BATCH, OPTIMIZER, SCORES, Job
from trainer.layouts import layouts, targets
from trainer.policy_model import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PolicyModel, Shape
from trainer.probe import Probe
from trainer.publication import (
    MANIFEST,
    Manifest,
    ProbeRow,
    manifest_of,
    publication,
    published,
    require_base,
    require_sound,
)
from trainer.recomputing import recompute
from trainer.training import Training, shape_metrics

_log = logging.getLogger("slipstream.update")


class Worker:
    """Takes job folders one after another, and keeps the model of the last one."""

    def __init__(self, emit: Callable[[dict[str, Any]], None]) -> None:
        self._emit = emit
        self._model: PolicyModel | None = None
        self.current: str | None = None
        """The run of the job at hand; None until it is known"""

    def run(self, folder: Path, result: Path | None = None) -> dict[str, float]:
        """Do a job and return its metrics; ``result`` takes the place of its target.

        Raises ``TrainerError``, or whatever a library raises.
        """
        self.current = None
        job = Job.read(folder)
        if result is not None:
            if job.kind != "train":
                raise JobInvalid(f"a job of kind {job.kind} leaves its result in its own folder: give no other")
            job = job.model_copy(update={"target": result.absolute()})
        self.current = job.run
        if job.target is not None and (manifest := published(job.target, job.run)):
            return dict(manifest.metrics)
        batch = Batch.load(folder / BATCH)
        started = time.perf_counter()
        model = self._prepare(job)
        if job.target is None:
            self._bear(model, job, job.parent.version)
            return self._score(model, job, batch, folder)
        batch = self._recomputed(model, job, batch)
        return self._train(model, job, batch, time.perf_counter() - started)

    def forget(self, error: Exception) -> None:
        """Drop the model after an error that nobody foresaw, since it may be in any state."""
        if not isinstance(error, TrainerError):
            self._model = None

    def _prepare(self, job: Job) -> PolicyModel:
        """Have the right model, with whatever adapter."""
        self._progress("load", 0, 1)
        shape = Shape(job.base_model, job.settings.rank, job.settings.alpha)
        if self._model is None or self._model.shape != shape:
            self._model = None  # frees the old one before the new one needs its memory
            self._model = PolicyModel.load(shape, job.base_fingerprint)
        if job.base_fingerprint not in (None, base_fingerprint(self._model.folder)):
            raise JobInvalid(
                f"the base model {job.base_model} has other files here than where the job was made: bring the same ones"
            )
        self._progress("load", 1, 1)
        return self._model

    def _recomputed(self, model: PolicyModel, job: Job, batch: Batch) -> Batch:
        """The batch with a logprob for every token. The model bears the parent's weights then."""
        wanted = batch.recomputed_under
        parent = job.parent.version
        for number, version in enumerate([*sorted(wanted - {parent}), parent]):
            self._bear(model, job, version)
            if version in wanted:
                batch = recompute(batch, model, version, job.settings.micro_batch_tokens)
                self._progress("recompute", number + 1, len(wanted))
        return batch

    def _bear(self, model: PolicyModel, job: Job, version: int) -> None:
        """Give the model the weights of a version."""
        adapter = job.parent.adapter if version == job.parent.version else job.samplers.get(version)
        if adapter is None:
            if version not in (BASE, job.parent.version):
                raise JobInvalid(f"the batch wants logprobs under version {version}, whose adapter is not in the job")
            model.reset_adapter(seed=job.version)
            return
        self._require_sound(adapter, base_fingerprint(model.folder))
        model.load_adapter(adapter, seed=job.version)

    def _require_sound(self, adapter: Path, fingerprint: str) -> None:
        """An adapter without a manifest, as peft alone writes it, says nothing of itself."""
        if not (adapter / MANIFEST).exists():
            return
        try:
            manifest = manifest_of(adapter)
            for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
                require_sound(adapter, manifest, name)
        except AdapterDamaged as damaged:
            raise JobInvalid(f"the adapter is damaged: {damaged}") from damaged
        require_base(adapter, manifest, fingerprint)

    def _train(self, model: PolicyModel, job: Job, batch: Batch, loading: float) -> dict[str, float]:
        assert job.target is not None
        started = time.perf_counter()
        probe = Probe.choose(batch)
        size = job.settings.micro_batch_tokens
        self._progress("probe", 0, 2)
        before = probe.logprobs(model, size)
        self._progress("probe", 1, 2)
        probed = time.perf_counter()
        training = Training(model, batch, job.settings, job.parent.version)
        continued = _go_on(training, job)
        metrics = training.run(lambda done, of: self._progress("update", done, of))
        updated = time.perf_counter()
        after = probe.logprobs(model, size)
        self._progress("probe", 2, 2)
        metrics |= {
            "optimizer_continued": float(continued),
            "seconds_load": loading,
            "seconds_update": updated - probed,
            "seconds_probe": probed - started + time.perf_counter() - updated,
        }
        with publication(job.target, job.run) as folder:
            model.save_adapter(folder)
            training.save_optimizer(folder / OPTIMIZER)
            metrics["seconds_total"] = time.perf_counter() - started + loading
            manifest = self._manifest(job, folder, metrics, probe.compare(before, after))
            (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))
        self._progress("publish", 1, 1)
        return metrics

    def _manifest(self, job: Job, folder: Path, metrics: dict[str, float], probe: list[ProbeRow]) -> Manifest:
        assert self._model is not None  # a job prepared it
        return Manifest(
            run=job.run,
            policy=job.policy,
            version=job.version,
            parent=job.parent.version,
            base_model=job.base_model,
            base_fingerprint=base_fingerprint(self._model.folder),
            sha256={name: file_sha256(folder / name) for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG, OPTIMIZER)},
            settings=job.settings,
            metrics=metrics,
            probe=probe,
        )

    def _score(self, model: PolicyModel, job: Job, batch: Batch, folder: Path) -> dict[str, float]:
        """Write the logprob of every trained token under the parent, sampled as the batch says.

        The metrics ``kl`` and ``mean_abs_logprob_diff`` are those of ``Training.run``, without recomputed tokens.
        """
        started = time.perf_counter()
        plan = list(layouts(batch.sequences, job.settings.micro_batch_tokens, tree=model.trains_trees))
        answers = [np.zeros(len(sequence), dtype=np.float32) for sequence in batch.sequences]
        differences = []
        with torch.no_grad(), model.sharing():
            for number, layout in enumerate(plan):
                found = targets(batch.sequences, layout)
                if len(found.ids):
                    logprobs = model.logprobs(layout, found)[0].cpu().numpy()
                    for owner, member in enumerate(layout.members):
                        sequence = batch.sequences[member]
                        answers[member][sequence.trained] = logprobs[found.owner == owner]
                        told = sequence.trained & ~sequence.recomputed
                        differences.append((sequence.logprobs - answers[member])[told])
                self._progress("score", number + 1, len(plan))
        save_file({"logprobs": np.concatenate(answers)}, folder / SCORES)
        difference = np.concatenate(differences).astype(np.float64)
        count = max(len(difference), 1)
        return {
            "kl": float(difference.sum()) / count,
            "mean_abs_logprob_diff": float(np.abs(difference).sum()) / count,
            **shape_metrics(batch, plan),
            "seconds_total": time.perf_counter() - started,
        }

    def _progress(self, stage: str, done: int, of: int) -> None:
        self._emit({"event": "progress", "run": self.current, "stage": stage, "done": done, "of": of})


def _go_on(training: Training, job: Job) -> bool:
    """Whether AdamW goes on with the parent's state; without one that fits it begins anew, and the metrics say so."""
    if job.parent.adapter is None or not job.parent.optimizer:
        return False
    try:
        training.load_optimizer(job.parent.adapter / OPTIMIZER)
    except JobInvalid as fault:
        _log.warning("AdamW begins anew: %s", fault)
        return False
    return True
