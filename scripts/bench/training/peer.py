"""TRL's GRPOTrainer, fed with recorded rows: its own loss, backward pass, clipping and optimizer, without generation.

It is spared what it would do to them by itself: to pad every row to the longest of the whole batch, and to shuffle long
among short ones.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.bench.training.rows import Row, micro_batches, sample
from storage.update_settings import UpdateSettings

_PILOT_ROWS = 4


@dataclass(frozen=True, slots=True)
class Way:
    """What is tried out for TRL: rows at once, and whether activations are computed again in the backward pass."""

    size: int
    recompute: bool


class Peer:
    """One trainer, and the rows of a batch."""

    def __init__(self, model: str, rows: list[Row], settings: UpdateSettings) -> None:
        from datasets import Dataset  # type: ignore[import-untyped]
        from peft import LoraConfig
        from trl import GRPOConfig, GRPOTrainer

        self._folder = tempfile.TemporaryDirectory(prefix="slipstream-trl-")
        cispo = settings.loss == "cispo"
        options = GRPOConfig(
            output_dir=self._folder.name,
            per_device_train_batch_size=8,
            num_generations=8,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant",
            max_grad_norm=settings.max_grad_norm,
            loss_type="cispo" if cispo else "dapo",
            epsilon=settings.clip_low,
            epsilon_high=5.0 if cispo else settings.clip_high,
            max_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
            bf16=True,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "bfloat16"},
        )
        lora = LoraConfig(
            r=settings.rank, lora_alpha=settings.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        prompts = Dataset.from_dict({"prompt": ["unused"] * 8})
        self._trainer: Any = GRPOTrainer(
            model=model, reward_funcs=lambda **_: [], args=options, train_dataset=prompts, peft_config=lora
        )
        self._trainer._prepare_inputs = lambda inputs: inputs  # they are ready: nothing is generated
        self._trainer.create_optimizer()
        self._rows = rows
        self._trained = sum(int(row.trained.sum()) for row in rows)

    def pilot(self, way: Way) -> int:
        """Forward and backward of a few micro-batches; returns the trained tokens in them."""
        parts = sample(micro_batches(self._rows, way.size), _PILOT_ROWS)
        self._accumulate(parts, way)
        self._trainer.model.zero_grad(set_to_none=True)
        return sum(int(row.trained.sum()) for part in parts for row in part)

    def step(self, way: Way) -> dict[str, float]:
        """One optimizer step over all rows."""
        loss = self._accumulate(micro_batches(self._rows, way.size), way)
        weights = [weight for weight in self._trainer.model.parameters() if weight.requires_grad]
        norm = self._trainer.accelerator.clip_grad_norm_(weights, self._trainer.args.max_grad_norm)
        self._trainer.optimizer.step()
        self._trainer.model.zero_grad(set_to_none=True)
        return {"loss": loss, "grad_norm": float(norm)}

    def _accumulate(self, parts: list[list[Row]], way: Way) -> float:
        model, trainer = self._trainer.model, self._trainer
        if way.recompute:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()
        # Its divisor is then the number of trained tokens of all rows, as ours is.
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = len(parts)
        total = 0.0
        for part in parts:
            total += float(trainer.training_step(model, _inputs(part, self._trained), torch.tensor(self._trained)))
        return total


def _inputs(rows: list[Row], trained: int) -> dict[str, Tensor]:
    """What GRPOTrainer makes of generated rows: prompts padded on the left, completions on the right."""
    left, right = max(row.begin for row in rows), max(len(row) - row.begin for row in rows)

    def padded(values: list[np.ndarray[Any, Any]], width: int, *, on_left: bool) -> Tensor:
        out = np.zeros((len(values), width), dtype=values[0].dtype)
        for line, value in zip(out, values, strict=True):
            line[width - len(value) if on_left else 0 : width if on_left else len(value)] = value
        return torch.from_numpy(out)

    prompts = [row.ids[: row.begin] for row in rows]
    answers = [row.ids[row.begin :] for row in rows]
    return {
        "prompt_ids": padded(prompts, left, on_left=True),
        "prompt_mask": padded([np.ones_like(ids) for ids in prompts], left, on_left=True),
        "completion_ids": padded(answers, right, on_left=False),
        "completion_mask": padded([np.ones_like(ids) for ids in answers], right, on_left=False),
        "tool_mask": padded([row.trained[row.begin :].astype(np.int64) for row in rows], right, on_left=False),
        "old_per_token_logps": padded([row.logprobs[row.begin :] for row in rows], right, on_left=False),
        "advantages": torch.tensor([row.advantage for row in rows]),
        "num_items_in_batch": torch.tensor(trained),
    }
