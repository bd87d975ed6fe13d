"""The product's own training, and the limit: Unsloth's plain model over the same number of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from scripts.bench.training.rows import Row
from storage.update_settings import UpdateSettings
from trainer.batches import Batch
from trainer.layouts import layouts, targets
from trainer.policy_model import LINEAR_LAYERS, PolicyModel, Shape
from trainer.training import Training

PARENT = 0


class Own:
    """The product's model and training."""

    def __init__(self, model: str, batch: Batch, settings: UpdateSettings) -> None:
        self._model = PolicyModel.load(Shape(model, settings.rank, settings.alpha))
        self._model.reset_adapter(seed=1)
        self._batch = batch
        self._settings = settings

    def scored(self) -> Batch:
        """The batch with the model's own logprobs of its trained tokens, as if it had just sampled them."""
        sequences = self._batch.sequences
        answers = [np.zeros(len(sequence), dtype=np.float32) for sequence in sequences]
        with torch.no_grad(), self._model.sharing():
            for layout in layouts(sequences, self._settings.micro_batch_tokens, tree=self._model.trains_trees):
                found = targets(sequences, layout)
                logprobs = self._model.logprobs(layout, found)[0].cpu().numpy()
                for owner, member in enumerate(layout.members):
                    answers[member][sequences[member].trained] = logprobs[found.owner == owner]
        rows = zip(sequences, answers, strict=True)
        return Batch(tuple(replace(sequence, logprobs=values) for sequence, values in rows), self._batch.advantages)

    def step(self) -> dict[str, float]:
        """One update, all of it: the layout of the batch, its passes, the optimizer step."""
        return Training(self._model, self._batch, self._settings, PARENT).run(lambda _done, _of: None)


class Limit:
    """Forward and backward of Unsloth's model as a user would call it; the labels are the trained tokens."""

    def __init__(self, model: str, rows: list[Row], settings: UpdateSettings) -> None:
        from unsloth import FastLanguageModel

        base, _ = FastLanguageModel.from_pretrained(model, dtype=torch.bfloat16, load_in_4bit=False)
        self._model: Any = FastLanguageModel.get_peft_model(
            base,
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=0,
            target_modules=list(LINEAR_LAYERS),
            use_gradient_checkpointing=False,
        )
        self._model.train()
        self._rows = rows

    def step(self) -> dict[str, float]:
        """Both passes over every row, one at a time; no optimizer step."""
        total, count = 0.0, sum(int(row.trained.sum()) for row in self._rows)
        for row in self._rows:
            labels = torch.from_numpy(np.where(row.trained, row.ids, -100))[None]
            loss = self._model(input_ids=torch.from_numpy(row.ids)[None], labels=labels).loss
            torch.autograd.backward(loss * (int(row.trained.sum()) / count))
            total += float(loss.detach()) * int(row.trained.sum()) / count
        self._model.zero_grad(set_to_none=True)
        return {"loss": total}
