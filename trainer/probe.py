"""The probe of a version: a few recorded tokens with their logprobs before and after the update.

The proxy asks vLLM for the same logprobs and regresses the served (new − parent) on these: slope 1 shows
that the adapter which is served is the one that was trained. Ordinary text has no power for this; what has
is the tokens that the update moved, so the rows come from the batch, those of large advantage first.

The logprobs are computed in bfloat16, as vLLM does. A LoRA delta below half a step of the base output is
rounded away there; float32 shows it, so that a regression on float32 has a slope of only 0.3 to 0.8 for the
first versions of the right adapter, where one on bfloat16 has 0.6 to 0.9 (180 tokens, vLLM 0.32, CPU).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trainer.batches import Batch, Sequence
from trainer.layouts import layouts, targets
from trainer.policy_model import PolicyModel
from trainer.publication import ProbeRow

MOST_TOKENS = 200
MOST_ROW_TOKENS = 1500


@dataclass(frozen=True, slots=True)
class Probe:
    """The rows chosen from a batch, cut behind their last trained token."""

    rows: tuple[Sequence, ...]

    @classmethod
    def choose(cls, batch: Batch) -> Probe:
        """Take distinct sequences with the largest |advantage| per token of the row, within two bounds.

        At most ``MOST_TOKENS`` trained tokens and ``MOST_ROW_TOKENS`` tokens in all, but always one row.
        """
        rows: dict[bytes, tuple[float, Sequence]] = {}
        for sequence, advantage in zip(batch.sequences, batch.advantages.tolist(), strict=True):
            if not sequence.trained_tokens:
                continue
            row = _plain(sequence)
            key = row.ids.tobytes() + row.trained.tobytes()
            power = abs(advantage) * row.trained_tokens / len(row)
            if key not in rows or rows[key][0] < power:
                rows[key] = (power, row)
        chosen: list[Sequence] = []
        trained = length = 0
        for _, row in sorted(rows.values(), key=lambda pair: -pair[0]):
            fits = trained + row.trained_tokens <= MOST_TOKENS and length + len(row) <= MOST_ROW_TOKENS
            if fits or not chosen:
                chosen.append(row)
                trained += row.trained_tokens
                length += len(row)
        return cls(tuple(chosen))

    def logprobs(self, model: PolicyModel, micro_batch_tokens: int) -> list[list[float]]:
        """Compute the logprobs of each row's trained tokens under the model's present weights."""
        answers: list[list[float]] = [[] for _ in self.rows]
        with torch.no_grad(), model.sharing():
            for layout in layouts(self.rows, micro_batch_tokens, tree=model.trains_trees):
                found = targets(self.rows, layout)
                logprobs, _ = model.logprobs(layout, found)
                for value, owner in zip(logprobs.tolist(), found.owner.tolist(), strict=True):
                    answers[layout.members[owner]].append(value)
        return answers

    def compare(self, parent: list[list[float]], new: list[list[float]]) -> list[ProbeRow]:
        """Join the logprobs of two versions with the rows, in the form that the manifest keeps."""
        return [
            ProbeRow(ids=row.ids.tolist(), positions=np.flatnonzero(row.trained).tolist(), parent=before, new=after)
            for row, before, after in zip(self.rows, parent, new, strict=True)
        ]


def _plain(sequence: Sequence) -> Sequence:
    """Cut a sequence behind its last trained token; sampling at temperature 1 without truncation."""
    end = int(np.flatnonzero(sequence.trained)[-1]) + 1
    return Sequence(
        ids=sequence.ids[:end],
        trained=sequence.trained[:end],
        logprobs=sequence.logprobs[:end],
        temperature=np.ones(end, dtype=np.float32),
        top_p=np.ones(end, dtype=np.float32),
        top_k=np.zeros(end, dtype=np.int32),
        version=sequence.version[:end],
    )
