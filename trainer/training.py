"""One update from a batch: the optimizer steps, and what they tell.

Left out: a learning-rate schedule (runs follow one another without end), weight decay (an adapter that
starts at zero needs none), a value function.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from storage.update_settings import UpdateSettings
from trainer import loss as losses
from trainer.batches import Batch
from trainer.errors import JobInvalid, UpdateFailed
from trainer.layouts import Layout, Targets, laid_out, layouts, targets
from trainer.policy_model import PolicyModel

MISMATCH = 0.2
"""Mean |log μ − log π| above which trainer and vLLM do not compute the same model. In bfloat16 it is 0.04 to 0.07."""
_MEANS = frozenset({"entropy", "kl", "mean_abs_logprob_diff", "clip_fraction", "ratio"})
"""Over the new tokens: without any there are none."""
Progress = Callable[[int, int], None]
"""Called with the number of micro-batches done, and of all."""


class Training:
    """The weights of a policy model, AdamW's state, and one batch."""

    def __init__(self, model: PolicyModel, batch: Batch, settings: UpdateSettings, parent: int) -> None:
        """``parent``: the version whose weights ``model`` has."""
        self._model = model
        self._batch = batch
        self._parent = parent
        self._settings = settings
        self._optimizer = torch.optim.AdamW(model.adapter.values(), lr=settings.learning_rate, weight_decay=0.0)
        chunks = layouts(batch.sequences, settings.micro_batch_tokens, tree=model.trains_trees)
        self._plan: list[tuple[Layout, Targets]] = []
        for layout in chunks:
            found = targets(batch.sequences, layout)
            if len(found.ids):
                self._plan.append((layout, found))
        self._seconds_forward = 0.0
        self._new_tokens = batch.trained_tokens - batch.replayed_tokens
        self._dropped: dict[int, Tensor] = {}
        """By micro-batch, the sequences that were too far off at the run's first forward."""

    def run(self, progress: Progress) -> dict[str, float]:
        """Take all optimizer steps; returns the metrics, those of the state before training from the first.

        ``kl`` is the mean of log μ − log π over the trained tokens, an estimate of KL(μ ‖ π) between what sampled
        them and what is trained; it has nothing to do with ``kl_weight`` and the base model. This mean, that of
        its absolute value (``mean_abs_logprob_diff``) and that of the entropy take in dropped sequences, too. What is
        trained again, and so was sampled by whatever version, enters none of them.

        ``ratio`` is the mean of π/μ. Raises ``UpdateFailed`` when the loss, a gradient or a weight is not a finite
        number, when the gradient explodes, when the policy has collapsed (``least_entropy``, ``least_length``), and
        when what the parent itself sampled has another logprob here than it had in vLLM.
        """
        started = time.perf_counter()
        total = len(self._plan) * self._settings.steps
        first: dict[str, float] = {}
        norm = 0.0
        for step in range(self._settings.steps):
            sums: dict[str, float] = defaultdict(float)
            self._optimizer.zero_grad(set_to_none=True)
            with self._model.sharing():
                for number, (layout, found) in enumerate(self._plan):
                    self._accumulate(number, layout, found, sums)
                    progress(step * len(self._plan) + number + 1, total)
            if step == 0:
                first = self._checked(sums)
            norm = self._step()
        seconds = time.perf_counter() - started
        tokens = self._settings.steps * sum(layout.tokens for layout, _ in self._plan)
        return {
            **first,
            "grad_norm": norm,
            **shape_metrics(self._batch, [layout for layout, _ in self._plan]),
            "seconds_forward": self._seconds_forward,
            "tokens_per_second": tokens / seconds,
        }

    def load_optimizer(self, path: Path) -> None:
        """Go on with AdamW's state of an earlier update. Raises ``JobInvalid`` when it does not fit."""
        try:
            stored = load_file(path)
        except (OSError, SafetensorError) as error:
            raise JobInvalid(f"the optimizer state {path} cannot be read: {error}") from error
        found = {}
        for name, weight in self._model.adapter.items():
            moments = [stored.get(f"{moment}.{name}") for moment in ("exp_avg", "exp_avg_sq")]
            if "step" not in stored or any(m is None or m.shape != weight.shape for m in moments):
                raise JobInvalid(f"the optimizer state {path} does not fit the adapter: {name}")
            found[weight] = {
                "step": stored["step"].clone(),
                "exp_avg": stored[f"exp_avg.{name}"].to(weight.device),
                "exp_avg_sq": stored[f"exp_avg_sq.{name}"].to(weight.device),
            }
        self._optimizer.state.update(found)

    def save_optimizer(self, path: Path) -> None:
        """Write AdamW's state: ``step``, and two moments per adapter weight under its name."""
        tensors: dict[str, Tensor] = {}
        for name, weight in self._model.adapter.items():
            state = self._optimizer.state[weight]
            tensors["step"] = state["step"].detach().cpu().clone()
            for moment in ("exp_avg", "exp_avg_sq"):
                tensors[f"{moment}.{name}"] = state[moment].detach().cpu().contiguous()
        save_file(tensors, path)

    def _checked(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of the state before training. Raises ``UpdateFailed`` when they forbid it."""
        metrics = dict(sums)
        of_parent = metrics["same_version_tokens"]
        mean = metrics["same_version_logprob_diff"] = metrics["same_version_logprob_diff"] / max(of_parent, 1)
        if mean > MISMATCH:
            raise UpdateFailed(
                f"engine mismatch: of {of_parent:.0f} tokens that version {self._parent} itself sampled, vLLM's "
                f"logprobs and the trainer's differ by {mean:.3f} in the mean (at most {MISMATCH} is expected): do "
                "both use the same weights, in the same precision?"
            )
        if not self._new_tokens:
            return {name: value for name, value in metrics.items() if name not in _MEANS}
        length = self._new_tokens / int((~self._batch.replayed).sum())
        for name, found, least in (
            ("entropy", metrics["entropy"], self._settings.least_entropy),
            ("length", length, self._settings.least_length),
        ):
            if found < least:
                raise UpdateFailed(f"the policy has collapsed: its mean {name} is {found:.3g}, below {least:g}")
        return metrics

    def _accumulate(self, number: int, layout: Layout, found: Targets, sums: dict[str, float]) -> None:
        """Add the part of micro-batch ``number`` to the gradient and to the metrics."""
        started = time.perf_counter()
        logprobs, entropy = self._model.logprobs(layout, found)
        base = None
        if self._settings.kl_weight:
            with torch.no_grad():
                base, _ = self._model.logprobs(layout, found, base=True)
        self._seconds_forward += time.perf_counter() - started
        tokens, dropped = self._tokens(number, layout, found, logprobs)
        again = torch.as_tensor(self._batch.replayed[list(layout.members)][found.owner], device=logprobs.device)
        new = replace(tokens, kept=tokens.kept & ~again)
        policy = self._policy_loss(new)
        loss = policy.loss
        if bool(again.any()):
            past = replace(tokens, kept=tokens.kept & again)
            loss = loss + losses.replay(past, self._batch.trained_tokens).loss
        if base is not None:
            loss = loss + self._settings.kl_weight * losses.divergence(new, base, self._batch.trained_tokens)
        if not bool(torch.isfinite(loss)):
            raise UpdateFailed(f"the loss is not a finite number ({loss.item()}); nothing was published")
        torch.autograd.backward(loss)
        count = max(self._new_tokens, 1)
        difference = (tokens.behaviour - tokens.logprobs.detach()).double()[~again]
        sums["loss"] += loss.item()
        sums["entropy"] += entropy.double()[~again].sum().item() / count
        sums["kl"] += difference.sum().item() / count
        sums["mean_abs_logprob_diff"] += difference.abs().sum().item() / count
        sums["clip_fraction"] += policy.clipped / count
        sums["dropped_sequences"] += int(dropped.sum())
        sums["ratio"] += (-difference).exp().sum().item() / count
        same = torch.as_tensor(self._of_parent(layout), device=difference.device)[~again]
        sums["same_version_tokens"] += int(same.sum())
        sums["same_version_logprob_diff"] += difference[same].abs().sum().item()

    def _of_parent(self, layout: Layout) -> npt.NDArray[np.bool_]:
        """(T,) Whether the parent itself sampled a trained token, whose logprob is vLLM's."""
        recorded = (self._batch.sequences[member] for member in layout.members)
        return np.concatenate([((one.version == self._parent) & ~one.recomputed)[one.trained] for one in recorded])

    def _tokens(self, number: int, layout: Layout, found: Targets, logprobs: Tensor) -> tuple[losses.Tokens, Tensor]:
        """Join the model's logprobs with what the batch knows of each trained token."""
        device = logprobs.device
        members = list(layout.members)
        owner = torch.as_tensor(found.owner, device=device)
        recorded = [self._batch.sequences[member] for member in members]
        behaviour = torch.cat([torch.as_tensor(s.logprobs[s.trained]) for s in recorded]).to(device)
        advantages = torch.as_tensor(self._batch.advantages[members], device=device)[owner]
        if number not in self._dropped:
            self._dropped[number] = losses.too_far(logprobs, behaviour, advantages, owner, len(members))
        dropped = self._dropped[number]
        return losses.Tokens(logprobs, behaviour, advantages, kept=~dropped[owner]), dropped

    def _policy_loss(self, tokens: losses.Tokens) -> losses.Loss:
        settings, count = self._settings, self._batch.trained_tokens
        if settings.loss == "cispo":
            return losses.cispo(tokens, count)
        return losses.grpo(tokens, count, clip_low=settings.clip_low, clip_high=settings.clip_high)

    def _step(self) -> float:
        """Clip the gradient, take the step; returns the norm before the clip."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._model.adapter.values(), self._settings.max_grad_norm))
        if not torch.isfinite(torch.tensor(norm)):
            raise UpdateFailed(f"the gradient is not a finite number ({norm}); nothing was published")
        if norm > self._settings.most_grad_norm:
            raise UpdateFailed(
                f"the gradient exploded: its norm is {norm:.3g}, above {self._settings.most_grad_norm:g}; nothing was "
                "published"
            )
        self._optimizer.step()
        if not all(bool(torch.isfinite(weight).all()) for weight in self._model.adapter.values()):
            raise UpdateFailed("a weight is not a finite number after the step; nothing was published")
        return norm


def shape_metrics(batch: Batch, chunks: list[Layout]) -> dict[str, float]:
    """Say how large a batch is, and how much of it was laid out for the model."""
    lengths = [len(sequence) for sequence in batch.sequences]
    return {
        "trained_tokens": batch.trained_tokens,
        "replayed_tokens": batch.replayed_tokens,
        "recomputed_tokens": sum(int(sequence.recomputed.sum()) for sequence in batch.sequences),
        "sequences": len(lengths),
        "mean_trained_length": batch.trained_tokens / len(lengths),
        "rows": len({sequence.ids.tobytes() for sequence in batch.sequences}),
        "mean_length": sum(lengths) / len(lengths),
        "tokens": sum(lengths),
        "tokens_laid_out": laid_out(chunks),
    }
