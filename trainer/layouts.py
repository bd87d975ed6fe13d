"""How the sequences of a batch are laid out for the model, and where their trained tokens lie in it.

Sequences of one group begin alike, and many are equal. A causal model gives a token the same hidden state
whatever comes after it, so tokens with the same tokens before them need to go through the model only once.
``shared`` lays sequences out as the nodes of a prefix tree in one row, each node attending to its ancestors
and itself, at the position of its depth: exact, and about three times faster than a row per rollout for
groups with short answers. It needs an attention that takes any mask, which Unsloth's kernels on a GPU do
not; for them ``padded`` lays out one row per distinct sequence. Padding on the right needs no mask at all:
no token attends to what comes after it.

Tree attention: SpecInfer (arXiv 2305.09781); as training layout: TRL's ``async_grpo``.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.batches import Sequence

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One micro-batch: B rows of L tokens."""

    ids: Ints
    """(B, L)"""
    positions: Ints
    """(B, L): the depth of each token in its sequence"""
    mask: npt.NDArray[np.bool_] | None
    """(1, 1, L, L), True where a row's token attends to a column's; None: plain causal"""
    members: tuple[int, ...]
    """The sequences of the batch that are in here, by index"""
    places: tuple[Ints, ...]
    """For each member, where its tokens lie in the flattened (B × L) rows"""

    @property
    def tokens(self) -> int:
        return int(self.ids.size)


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The trained tokens of a layout: M distinct ones, for T in the sequences.

    Two trained tokens are one target when they come after the same tokens, and are the same, sampled alike.
    """

    places: Ints
    """(M,) into the flattened rows: the token *before* the target, whose hidden state predicts it"""
    ids: Ints
    """(M,)"""
    temperature: npt.NDArray[np.float32]
    """(M,)"""
    top_p: npt.NDArray[np.float32]
    """(M,)"""
    top_k: Ints
    """(M,)"""
    inverse: Ints
    """(T,) the target of each trained token, sequence after sequence"""
    owner: Ints
    """(T,) the position in ``members`` of the sequence of each trained token"""


def layouts(sequences: Sequence_[Sequence], limit: int, *, tree: bool) -> Iterator[Layout]:
    """Divide sequences into micro-batches of at most ``limit`` tokens; a longer sequence goes alone.

    ``tree`` chooses ``shared`` (sorted by content, so that what begins alike lies together), otherwise
    ``padded`` (sorted by length, so that little is padded).
    """
    if tree:
        order = sorted(range(len(sequences)), key=lambda index: _content(sequences[index]))
    else:
        order = sorted(range(len(sequences)), key=lambda i: (len(sequences[i]), _content(sequences[i])))
    cost = _TreeCost() if tree else _PaddedCost()
    chunk: list[int] = []
    for index in order:
        if chunk and cost.after(sequences[index]) > limit:
            yield _lay_out(sequences, chunk, tree)
            chunk = []
            cost = _TreeCost() if tree else _PaddedCost()
        cost.add(sequences[index])
        chunk.append(index)
    if chunk:
        yield _lay_out(sequences, chunk, tree)


def shared(sequences: Sequence_[Sequence], members: Sequence_[int]) -> Layout:
    """Lay members out as one row, a prefix tree. They must be sorted by content.

    In that order a sequence's longest common prefix with all earlier ones is the one with its forerunner.
    """
    places: list[Ints] = []
    fresh: list[tuple[int, Ints]] = []  # (tokens shared with the forerunner, path)
    count = 0
    for number, member in enumerate(members):
        ids = sequences[member].ids
        common = _common_prefix(sequences[members[number - 1]].ids, ids) if number else 0
        path = np.arange(count - common, count - common + len(ids))
        if common:
            path[:common] = places[-1][:common]
        count += len(ids) - common
        places.append(path)
        fresh.append((common, path))
    row = np.zeros((1, count), dtype=np.int64)
    positions = np.zeros((1, count), dtype=np.int64)
    is_chain = count == max(len(path) for path in places)
    mask = None if is_chain else np.zeros((1, 1, count, count), dtype=np.bool_)
    for (common, path), member in zip(fresh, members, strict=True):
        row[0, path] = sequences[member].ids
        depth = np.arange(len(path))
        positions[0, path] = depth
        if mask is not None:
            mask[0, 0, path[common:, None], path[None, :]] = depth[None, :] <= depth[common:, None]
    return Layout(row, positions, mask, tuple(members), tuple(places))


def padded(sequences: Sequence_[Sequence], members: Sequence_[int]) -> Layout:
    """Lay members out as one row per distinct sequence, padded on the right."""
    rows: dict[bytes, int] = {}
    for member in members:
        rows.setdefault(_content(sequences[member]), len(rows))
    length = max(len(sequences[member]) for member in members)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    places = []
    for member in members:
        sequence = sequences[member]
        row = rows[_content(sequence)]
        ids[row, : len(sequence)] = sequence.ids
        places.append(row * length + np.arange(len(sequence)))
    positions = np.broadcast_to(np.arange(length), ids.shape).copy()
    return Layout(ids, positions, None, tuple(members), tuple(places))


def targets(sequences: Sequence_[Sequence], layout: Layout) -> Targets:
    """Find the trained tokens of a layout, each distinct one once."""
    parts, owners = [], []
    for owner, (member, places) in enumerate(zip(layout.members, layout.places, strict=True)):
        sequence = sequences[member]
        at = np.flatnonzero(sequence.trained)
        columns = (places[at - 1], sequence.ids[at], sequence.temperature[at], sequence.top_p[at])
        # float64 holds every id and every float32 exactly
        parts.append(np.stack([*columns, sequence.top_k[at]], axis=1).astype(np.float64))
        owners.append(np.full(len(at), owner, dtype=np.int64))
    distinct, inverse = np.unique(np.concatenate(parts), axis=0, return_inverse=True)
    return Targets(
        places=distinct[:, 0].astype(np.int64),
        ids=distinct[:, 1].astype(np.int64),
        temperature=distinct[:, 2].astype(np.float32),
        top_p=distinct[:, 3].astype(np.float32),
        top_k=distinct[:, 4].astype(np.int64),
        inverse=inverse.reshape(-1).astype(np.int64),
        owner=np.concatenate(owners),
    )


class _TreeCost:
    """Counts the nodes of a prefix tree while sequences are added in order."""

    def __init__(self) -> None:
        self._last: npt.NDArray[np.int32] | None = None
        self._nodes = 0

    def after(self, sequence: Sequence) -> int:
        common = 0 if self._last is None else _common_prefix(self._last, sequence.ids)
        return self._nodes + len(sequence) - common

    def add(self, sequence: Sequence) -> None:
        self._nodes = self.after(sequence)
        self._last = sequence.ids


class _PaddedCost:
    """Counts the cells of padded rows while sequences are added in order of length."""

    def __init__(self) -> None:
        self._rows: set[bytes] = set()

    def after(self, sequence: Sequence) -> int:
        return len(self._rows | {_content(sequence)}) * len(sequence)

    def add(self, sequence: Sequence) -> None:
        self._rows.add(_content(sequence))


def _lay_out(sequences: Sequence_[Sequence], members: list[int], tree: bool) -> Layout:
    return shared(sequences, members) if tree else padded(sequences, members)


def _content(sequence: Sequence) -> bytes:
    # Big-endian: bytes then sort as the numbers do.
    return sequence.ids.astype(">u4").tobytes()


def _common_prefix(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
