"""The probe of a version: a few recorded tokens with their logprobs before and after the update.

The proxy asks vLLM for the same logprobs and regresses the served (new − parent) on these: slope 1 shows
that the adapter which is served is the one that was trained. Ordinary text has no power for this; what has
is the tokens that the update moved: of a bounded part of the batch, those whose logprob it moved most.

The logprobs are computed in bfloat16, as vLLM does. A LoRA delta below half a step of the base output is
rounded away there; float32 shows it, so that a regression on float32 has a slope of only 0.3 for the first
version of the right adapter, where one on bfloat16 has 1.1 (vLLM 0.32, CPU; docs/architecture.md has the figures).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trainer.batches import Batch, Sequence, Source
from trainer.layouts import layouts, targets
from trainer.policy_model import PolicyModel
from trainer.publication import ProbeRow

MOST_TOKENS = 200
MOST_ROW_TOKENS = 1500
MOST_CANDIDATE_TOKENS = 4000
"""Of the rows among which the update's effect is looked for: two forward passes over them."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The candidates: recorded rows of a batch, cut behind their last trained token."""

    rows: tuple[Sequence, ...]

    @classmethod
    def choose(cls, batch: Batch) -> Probe:
        """Take distinct recorded sequences with the largest |advantage| per token of the row.

        At most ``MOST_CANDIDATE_TOKENS`` tokens in all, but always one row where there is one.
        """
        rows: dict[bytes, tuple[float, Sequence]] = {}
        for sequence, advantage in zip(batch.sequences, batch.advantages.tolist(), strict=True):
            if not sequence.trained_tokens or sequence.source is None:
                continue
            row = _plain(sequence)
            key = row.ids.tobytes() + row.trained.tobytes()
            power = abs(advantage) * row.trained_tokens / len(row)
            if key not in rows or rows[key][0] < power:
                rows[key] = (power, row)
        chosen: list[Sequence] = []
        length = 0
        for _, row in sorted(rows.values(), key=lambda pair: -pair[0]):
            if length + len(row) <= MOST_CANDIDATE_TOKENS or not chosen:
                chosen.append(row)
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
        """Choose the tokens whose logprob moved most, in the form that the manifest keeps.

        At most ``MOST_TOKENS``, in rows of at most ``MOST_ROW_TOKENS`` tokens up to the last that was chosen, but
        always one. A token behind the same ids as another is the same measurement and is taken once.
        """
        places = [np.flatnonzero(row.trained).tolist() for row in self.rows]
        moves = [
            (-abs(after - before), row, nth)
            for row, pair in enumerate(zip(parent, new, strict=True))
            for nth, (before, after) in enumerate(zip(*pair, strict=True))
        ]
        chosen: list[list[int]] = [[] for _ in self.rows]
        ends = [0] * len(self.rows)
        seen: set[bytes] = set()
        for _, row, nth in sorted(moves):
            end = places[row][nth] + 1
            longer = max(end - ends[row], 0)
            context = self.rows[row].ids[:end].tobytes()
            if context in seen or (seen and sum(ends) + longer > MOST_ROW_TOKENS):
                continue
            seen.add(context)
            chosen[row].append(nth)
            ends[row] += longer
            if len(seen) == MOST_TOKENS:
                break
        return [
            _written(self.rows[row].source, *([values[nth] for nth in sorted(picked)] for values in columns))
            for row, (picked, *columns) in enumerate(zip(chosen, places, parent, new, strict=True))
            if picked
        ]


def _written(source: Source | None, positions: list[int], parent: list[float], new: list[float]) -> ProbeRow:
    assert source is not None  # only recorded rows are candidates
    call, choice = source
    return ProbeRow(call=call, choice=choice, positions=positions, parent=parent, new=new)


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
        source=sequence.source,
    )
