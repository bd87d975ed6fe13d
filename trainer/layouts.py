"""How the sequences of a batch are laid out for the model, and where their trained tokens lie in it.

Sequences of one group begin alike, and many are equal. A causal model gives a token the same hidden state
whatever comes after it, so tokens with the same tokens before them need to go through the model only once.

What fits into one micro-batch ``shared`` lays out as the nodes of a prefix tree in one row, each node attending
to its ancestors and itself, at the position of its depth: exact, and about three times faster than a row per
rollout for groups with short answers. Its mask is as large as the square of the limit, at most: a row without
branches, however long, needs none. What does not fit is divided where it branches, and the beginning that the
parts share becomes their ``Stem``: it goes through the model before them, and they attend to what it left.

Both need ``trainer.attention``, which Unsloth's kernels on a GPU have no room for; there ``padded`` lays out one row
per distinct sequence. Padding on the right needs no mask at all: no token attends to what comes after it.

Tree attention: SpecInfer (arXiv 2305.09781); as training layout: TRL's ``async_grpo``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.batches import Sequence

Ints = npt.NDArray[np.int64]
LEAST_STEM = 32
"""Tokens; a pass of its own for fewer costs more than it saves."""


@dataclass(frozen=True, slots=True, eq=False)
class Stem:
    """What several micro-batches begin with: t tokens from the depth ``start`` on, after those of ``below``."""

    ids: Ints
    """(t,)"""
    start: int
    below: Stem | None

    @property
    def chain(self) -> tuple[Stem, ...]:
        """This stem and all below it, the lowest first."""
        return (*(self.below.chain if self.below else ()), self)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One micro-batch: B rows of L tokens, which attend to all tokens of the stem, too."""

    ids: Ints
    """(B, L)"""
    positions: Ints
    """(B, L): the depth of each token in its sequence"""
    mask: npt.NDArray[np.bool_] | None
    """(1, 1, L, L), True where a row's token attends to a column's; None: plain causal"""
    members: tuple[int, ...]
    """The sequences of the batch that are in here, by index"""
    places: tuple[Ints, ...]
    """For each member, where its tokens lie in the tokens of the stem's chain and, behind them, the flattened rows"""
    stem: Stem | None = None

    @property
    def tokens(self) -> int:
        """Without the stem's."""
        return int(self.ids.size)

    @property
    def chain(self) -> tuple[Stem, ...]:
        return self.stem.chain if self.stem else ()


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The trained tokens of a layout: M distinct ones, for T in the sequences.

    Two trained tokens are one target when they come after the same tokens, and are the same, sampled alike.
    """

    places: Ints
    """(M,) as the layout's ``places``: the token *before* the target, whose hidden state predicts it"""
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


def layouts(
    sequences: Sequence_[Sequence], limit: int, *, tree: bool, least_stem: int | None = None
) -> Iterator[Layout]:
    """Divide sequences into micro-batches of at most ``limit`` tokens; a longer sequence goes alone.

    ``tree`` chooses ``shared`` (sorted by content, so that what begins alike lies together), otherwise
    ``padded`` (sorted by length, so that little is padded). The tokens of a stem are held while the micro-batches
    that share it pass, and count as theirs; but half of the limit is always left for what is new. ``least_stem``:
    tokens that a stem must have (``LEAST_STEM``).
    """
    if tree:
        yield from _Tree(sequences, limit, LEAST_STEM if least_stem is None else least_stem).layouts()
        return
    order = sorted(range(len(sequences)), key=lambda i: (len(sequences[i]), _content(sequences[i])))
    cost = _PaddedCost()
    chunk: list[int] = []
    for index in order:
        if chunk and cost.after(sequences[index]) > limit:
            yield padded(sequences, chunk)
            chunk, cost = [], _PaddedCost()
        cost.add(sequences[index])
        chunk.append(index)
    if chunk:
        yield padded(sequences, chunk)


def laid_out(found: Iterable[Layout]) -> int:
    """How many tokens go through the model for some layouts: each stem once, and padding, too."""
    chunks = list(found)
    stems = {id(stem): len(stem.ids) for layout in chunks for stem in layout.chain}
    return sum(layout.tokens for layout in chunks) + sum(stems.values())


def shared(sequences: Sequence_[Sequence], members: Sequence_[int], stem: Stem | None = None) -> Layout:
    """Lay members out as one row, a prefix tree. They must be sorted by content, and begin with the stem.

    In that order a sequence's longest common prefix with all earlier ones is the one with its forerunner.
    """
    depth = stem.start + len(stem.ids) if stem else 0
    places: list[Ints] = []
    fresh: list[tuple[int, Ints]] = []  # (tokens shared with the forerunner or the stem, path)
    count = depth
    for number, member in enumerate(members):
        ids = sequences[member].ids
        common = _common_prefix(sequences[members[number - 1]].ids, ids) if number else depth
        path = np.arange(count - common, count - common + len(ids))
        path[:common] = places[-1][:common] if number else np.arange(depth)
        count += len(ids) - common
        places.append(path)
        fresh.append((common, path))
    row = np.zeros((1, count - depth), dtype=np.int64)
    positions = np.zeros((1, count - depth), dtype=np.int64)
    is_chain = count == max(len(path) for path in places)
    mask = None if is_chain else np.zeros((1, 1, count - depth, count - depth), dtype=np.bool_)
    for (common, path), member in zip(fresh, members, strict=True):
        own, at = path[depth:] - depth, np.arange(depth, len(path))
        row[0, own] = sequences[member].ids[depth:]
        positions[0, own] = at
        if mask is not None:
            begin = common - depth
            mask[0, 0, own[begin:, None], own[None, :]] = at[None, :] <= at[begin:, None]
    return Layout(row, positions, mask, tuple(members), tuple(places), stem)


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


class _Tree:
    """The prefix tree of sequences: in the order of their content each run of them is a subtree."""

    def __init__(self, sequences: Sequence_[Sequence], limit: int, least_stem: int) -> None:
        self._sequences = sequences
        self._limit = limit
        self._least = least_stem
        self._order = sorted(range(len(sequences)), key=lambda index: _content(sequences[index]))
        self._lengths = [len(sequences[index]) for index in self._order]
        pairs = zip(self._order, self._order[1:], strict=False)
        common = (_common_prefix(sequences[one].ids, sequences[other].ids) for one, other in pairs)
        self._common = [0, *common]
        """With the forerunner"""

    def layouts(self) -> Iterator[Layout]:
        if self._order:
            yield from self._divide(0, len(self._order), None, 0)

    def _divide(self, low: int, high: int, stem: Stem | None, depth: int) -> Iterator[Layout]:
        """Lay the run out behind a stem that ends at ``depth``, which all of it begins with."""
        if self._fits(low, high, depth):
            yield shared(self._sequences, self._order[low:high], stem)
            return
        branch = min(self._common[low + 1 : high])
        # Something of each sequence is left over, so that no row is empty.
        end = min(branch, min(self._lengths[low:high]) - 1)
        if end - depth >= self._least:
            ids = self._sequences[self._order[low]].ids[depth:end].astype(np.int64)
            stem, depth = Stem(ids, depth, stem), end
        begin = low
        for after in self._parts(low, high, branch):
            if after < high and self._fits(begin, self._next(after, high, branch), depth):
                continue
            yield from self._divide(begin, after, stem, depth)
            begin = after

    def _parts(self, low: int, high: int, branch: int) -> Iterator[int]:
        """Where each of the parts ends that a run falls into at the depth ``branch``."""
        yield from (at for at in range(low + 1, high) if self._common[at] == branch)
        yield high

    def _next(self, low: int, high: int, branch: int) -> int:
        return next(self._parts(low, high, branch))

    def _fits(self, low: int, high: int, depth: int) -> bool:
        """Whether a run is one micro-batch: small enough, or nothing but one sequence and what it begins with."""
        fresh = sum(self._lengths[at] - self._common[at] for at in range(low + 1, high))
        nodes = self._lengths[low] - depth + fresh
        room = max(self._limit - depth, self._limit // 2)
        return nodes <= room or nodes == max(self._lengths[low:high]) - depth


class _PaddedCost:
    """Counts the cells of padded rows while sequences are added in order of length."""

    def __init__(self) -> None:
        self._rows: set[bytes] = set()

    def after(self, sequence: Sequence) -> int:
        return len(self._rows | {_content(sequence)}) * len(sequence)

    def add(self, sequence: Sequence) -> None:
        self._rows.add(_content(sequence))


def _content(sequence: Sequence) -> bytes:
    # Big-endian: bytes then sort as the numbers do.
    return sequence.ids.astype(">u4").tobytes()


def _common_prefix(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
