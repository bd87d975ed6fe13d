"""Print, as JSON, what Unsloth's model computes for one batch in every layout. A process of its own.

python layout_figures.py MODEL BATCH
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import unsloth  # noqa: F401  (it has to come first)

import numpy as np  # isort: skip
import torch  # isort: skip

from trainer.batches import Batch  # isort: skip
from trainer.layouts import layouts, targets  # isort: skip
from trainer.policy_model import PolicyModel, Shape  # isort: skip


def logprobs(model: PolicyModel, batch: Batch, limit: int, tree: bool) -> tuple[list[float], list[float]]:
    """Return the logprobs of all trained tokens, and the gradient of their sum on one of the matrices."""
    answers: list[np.ndarray] = [np.zeros(0)] * len(batch.sequences)
    for weight in model.adapter.values():
        weight.grad = None
    with model.sharing():
        for layout in layouts(batch.sequences, limit, tree=tree, least_stem=1):
            found = targets(batch.sequences, layout)
            values, _ = model.logprobs(layout, found)
            torch.autograd.backward(values.sum())
            for owner, member in enumerate(layout.members):
                answers[member] = values.detach().numpy()[found.owner == owner]
    probe = next(weight for name, weight in model.adapter.items() if "layers.3.mlp.up_proj.lora_B" in name)
    assert probe.grad is not None
    return np.concatenate(answers).tolist(), probe.grad[:32].reshape(-1).tolist()


def main(folder: str, path: str) -> None:
    model = PolicyModel.load(Shape(folder, 16, 32))
    model.reset_adapter(seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in model.adapter.items():
            if ".lora_B." in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
    batch = Batch.load(Path(path))
    figures = {"bfloat16": logprobs(model, batch, 1024, True)[0]}
    model._model.float()  # float32 shows a fault that the noise of bfloat16 would hide
    for name, limit, tree in (("tree", 1024, True), ("stems", 8, True), ("padded", 1024, False), ("alone", 1, False)):
        figures[name], figures[f"{name}_gradient"] = logprobs(model, batch, limit, tree)
    model.save_adapter(Path(path).parent)
    sys.stdout.write("\n" + json.dumps(figures) + "\n")


main(*sys.argv[1:])
