"""The batch of an update: sequences, their advantages, and the file in which both travel.

This module is free of torch, since the trainer's loop builds batches and only the update worker trains them.

Equal rollouts need no merging here. Two sequences with the same ids may still differ in recorded logprobs
and in the sign of their advantage, and the clip of GRPO treats the signs differently, so no single row with
a summed advantage has the same loss as the two. The worker instead runs shared tokens through the model
once (``trainer.layouts``) and computes the loss of every sequence from its own numbers: as fast, and exact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from trainer.errors import BatchInvalid

Source = tuple[str, int]
"""A call's id and one of its choices: as ids, its prompt with the choice behind it (``storage.calls.path``)."""
_PER_TOKEN = ("trained", "logprobs", "temperature", "top_p", "top_k", "version", "recomputed")
_TYPES: dict[str, npt.DTypeLike] = {
    "ids": np.int32,
    "starts": np.int64,
    "trained": np.bool_,
    "logprobs": np.float32,
    "temperature": np.float32,
    "top_p": np.float32,
    "top_k": np.int32,
    "version": np.int32,
    "recomputed": np.bool_,
    "advantages": np.float32,
    "replayed": np.bool_,
}


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One path of a session as the model sees it. Every field has one entry per token.

    Lists and tuples are taken, too; they are kept as arrays. Raises ``BatchInvalid``.
    """

    ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]
    """True where the model sampled the token and is to learn from it; never at position 0."""
    logprobs: npt.NDArray[np.float32]
    """Of each trained token, as the engine sampled it: after temperature, top_p and top_k. 0 elsewhere."""
    temperature: npt.NDArray[np.float32]
    """The effective value of each trained token, above 0. 1 elsewhere."""
    top_p: npt.NDArray[np.float32]
    """In (0, 1]; 1 is no limit. 1 elsewhere."""
    top_k: npt.NDArray[np.int32]
    """0 is no limit. 0 elsewhere."""
    version: npt.NDArray[np.int32]
    """Of the policy that sampled each trained token. 0 elsewhere."""
    recomputed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """True where the engine's logprob is not the policy's: the worker puts its own there. Empty: nowhere."""
    source: Source | None = None
    """Where ``ids`` stand in storage; None: they are not recorded."""

    def __post_init__(self) -> None:
        for name in ("ids", *_PER_TOKEN):
            object.__setattr__(self, name, _array(name, getattr(self, name)))
        length = len(self.ids)
        if len(self.recomputed) == 0:
            object.__setattr__(self, "recomputed", np.zeros(length, dtype=np.bool_))
        if length == 0:
            raise BatchInvalid("a sequence has no tokens")
        for name in _PER_TOKEN:
            if len(getattr(self, name)) != length:
                raise BatchInvalid(f"{name} has {len(getattr(self, name))} entries for {length} ids")
        self._check_values()

    def _check_values(self) -> None:
        trained = self.trained
        if trained[0]:
            raise BatchInvalid("position 0 is marked as trained, but no token comes before the first")
        checks = {
            "only a trained token can be recomputed": self.recomputed & ~trained,
            "ids must not be negative": self.ids < 0,
            "the logprob of a trained token must be a finite number of at most 0": trained
            & ~(np.isfinite(self.logprobs) & (self.logprobs <= 1e-3)),
            "the temperature of a trained token must be above 0": trained
            & ~(np.isfinite(self.temperature) & (self.temperature > 0)),
            "the top_p of a trained token must lie in (0, 1]": trained & ~((self.top_p > 0) & (self.top_p <= 1)),
            "the top_k of a trained token must not be negative (0: no limit)": trained & (self.top_k < 0),
        }
        for text, wrong in checks.items():
            if wrong.any():
                raise BatchInvalid(f"{text}; wrong at position {int(np.argmax(wrong))}")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained_tokens(self) -> int:
        return int(self.trained.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one update learns from: N sequences with an advantage each.

    A trajectory that split into several sequences gives each the same advantage. Its weight does not grow with
    their number: each sampled token stands in exactly one of them, and the loss is divided by the number of
    tokens. Raises ``BatchInvalid``.
    """

    sequences: tuple[Sequence, ...]
    advantages: npt.NDArray[np.float32]
    replayed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """(N,) True where the sequence was trained before, and is trained again. Empty: nowhere."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sequences", tuple(self.sequences))
        for name in ("advantages", "replayed"):
            object.__setattr__(self, name, _array(name, getattr(self, name)))
        if len(self.replayed) == 0:
            object.__setattr__(self, "replayed", np.zeros(len(self.sequences), dtype=np.bool_))
        for name in ("advantages", "replayed"):
            if len(getattr(self, name)) != len(self.sequences):
                entries = len(getattr(self, name))
                raise BatchInvalid(f"{name} has {entries} entries for {len(self.sequences)} sequences")
        if not np.isfinite(self.advantages).all():
            raise BatchInvalid(f"advantages must be finite, got {self.advantages.tolist()}")
        if not any(sequence.trained_tokens for sequence in self.sequences):
            raise BatchInvalid("the batch has no trained token")

    @property
    def trained_tokens(self) -> int:
        """Of all sequences: the one divisor of the whole update's loss."""
        return sum(sequence.trained_tokens for sequence in self.sequences)

    @property
    def replayed_tokens(self) -> int:
        """Of them those that are trained again."""
        return sum(one.trained_tokens for one, again in zip(self.sequences, self.replayed, strict=True) if again)

    @property
    def recomputed_under(self) -> set[int]:
        """The versions whose own logprobs are still to be computed for tokens that they sampled."""
        return {int(number) for one in self.sequences for number in np.unique(one.version[one.recomputed])}

    def save(self, path: Path) -> None:
        """Write ``batch.safetensors``: flat tensors, sequence i at ``starts[i]:starts[i + 1]``."""
        lengths = [len(sequence) for sequence in self.sequences]
        tensors = {
            name: np.concatenate([getattr(sequence, name) for sequence in self.sequences])
            for name in ("ids", *_PER_TOKEN)
        }
        tensors["starts"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tensors |= {name: np.ascontiguousarray(getattr(self, name)) for name in ("advantages", "replayed")}
        sources = json.dumps([sequence.source for sequence in self.sequences])
        save_file(tensors, path, metadata={"sources": sources})

    @classmethod
    def load(cls, path: Path) -> Batch:
        """Read what ``save`` wrote. Raises ``BatchInvalid``."""
        try:
            tensors = load_file(path)
            with safe_open(path, "np") as file:
                written = (file.metadata() or {}).get("sources")
        except (OSError, SafetensorError) as error:
            raise BatchInvalid(f"{path} cannot be read: {error}") from error
        if "ids" in tensors:  # a file of an earlier format recomputes nothing, and replays nothing
            tensors.setdefault("recomputed", np.zeros(len(tensors["ids"]), dtype=np.bool_))
        missing = {"ids", "starts", "advantages", *_PER_TOKEN} - tensors.keys()
        if missing:
            raise BatchInvalid(f"{path} lacks the tensors {sorted(missing)}")
        starts = _array("starts", tensors["starts"])
        total = len(tensors["ids"])
        if len(starts) < 2 or starts[0] != 0 or starts[-1] != total or (np.diff(starts) <= 0).any():
            raise BatchInvalid(f"starts must rise from 0 to {total}, the number of ids; got {starts.tolist()}")
        for name in _PER_TOKEN:
            if len(tensors[name]) != total:
                raise BatchInvalid(f"{name} has {len(tensors[name])} entries for {total} ids")
        sources = [tuple(s) if s else None for s in json.loads(written)] if written else [None] * (len(starts) - 1)
        sequences = []
        for index, (start, end) in enumerate(pairwise(starts.tolist())):
            try:
                values = {name: tensors[name][start:end] for name in ("ids", *_PER_TOKEN)}
                sequences.append(Sequence(**values, source=sources[index]))
            except BatchInvalid as error:
                raise BatchInvalid(f"sequence {index}: {error}") from error
        return cls(tuple(sequences), tensors["advantages"], tensors.get("replayed", np.zeros(0, dtype=np.bool_)))


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values, dtype=_TYPES[name])
    except (TypeError, ValueError, OverflowError) as error:
        raise BatchInvalid(f"{name} cannot be read as {np.dtype(_TYPES[name]).name}: {error}") from error
    if array.ndim != 1:
        raise BatchInvalid(f"{name} must have one dimension, got the shape {array.shape}")
    return array
