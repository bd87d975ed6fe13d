"""The rows that are trained, as each contender is fed with them, of one and the same batch."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from scripts.bench.training.sessions import plain
from trainer.batches import Batch, Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A prompt of ``begin`` tokens and what comes after it, of which the sampled tokens are trained."""

    ids: npt.NDArray[np.int64]
    begin: int
    trained: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    advantage: float

    def __len__(self) -> int:
        return len(self.ids)


def per_session(batch: Batch) -> list[Row]:
    """One row a session: what comes after the first prompt is its completion, tool results masked."""
    pairs = zip(batch.sequences, batch.advantages.tolist(), strict=True)
    return [_row(sequence, int(np.argmax(sequence.trained)), len(sequence), worth) for sequence, worth in pairs]


def per_call(batch: Batch) -> list[Row]:
    """One row a call: its whole prompt, and its answer."""
    rows = []
    for sequence, worth in zip(batch.sequences, batch.advantages.tolist(), strict=True):
        edges = np.flatnonzero(np.diff(sequence.trained.astype(np.int8), append=0)) + 1  # begin, end, begin, ...
        rows += [
            _row(sequence, begin, end, worth) for begin, end in pairwise(edges.tolist()) if sequence.trained[begin]
        ]
    return rows


def unique(batch: Batch, length: int) -> list[Row]:
    """Every distinct token once, in rows of ``length``: each session without what its forerunner began with, too.

    Not what training needs (a row holds parts of several sessions), but exactly as many tokens.
    """
    ids: list[npt.NDArray[np.int32]] = []
    trained: list[npt.NDArray[np.bool_]] = []
    before = np.zeros(0, dtype=np.int32)
    for sequence in batch.sequences:
        shorter = min(len(before), len(sequence))
        different = np.flatnonzero(before[:shorter] != sequence.ids[:shorter])
        common = int(different[0]) if len(different) else shorter
        ids.append(sequence.ids[common:])
        trained.append(sequence.trained[common:])
        before = sequence.ids
    joined, mask = np.concatenate(ids), np.concatenate(trained)
    cuts = [slice(start, start + length) for start in range(0, len(joined), length)]
    return [_row(plain(joined[cut].tolist(), mask[cut].tolist()), 0, len(joined[cut]), 0.0) for cut in cuts]


def micro_batches(rows: Sequence_[Row], size: int) -> list[list[Row]]:
    """At most ``size`` rows each, by length, so that little is padded."""
    ordered = sorted(rows, key=lambda row: (len(row), row.ids.tobytes()))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def sample(parts: Sequence_[list[Row]], rows: int) -> list[list[Row]]:
    """As few micro-batches, evenly spread, as hold ``rows`` rows."""
    count = min(len(parts), -(-rows // len(parts[0])))
    return [parts[(2 * number + 1) * len(parts) // (2 * count)] for number in range(count)]


def _row(sequence: Sequence, begin: int, end: int, worth: float) -> Row:
    trained = sequence.trained[:end].copy()
    trained[:begin] = False
    return Row(sequence.ids[:end].astype(np.int64), begin, trained, sequence.logprobs[:end], worth)
