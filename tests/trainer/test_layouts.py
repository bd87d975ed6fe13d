from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.batches import Sequence
from trainer.layouts import Layout, layouts, targets


def sequence(ids: list[int], trained: list[bool] | None = None, temperature: float = 1.0) -> Sequence:
    count = len(ids)
    mask = np.array([False, *[True] * (count - 1)] if trained is None else trained)
    return Sequence(
        ids=np.array(ids, dtype=np.int32),
        trained=mask,
        logprobs=np.where(mask, -1, 0).astype(np.float32),
        temperature=np.where(mask, temperature, 1).astype(np.float32),
        top_p=np.ones(count, dtype=np.float32),
        top_k=np.zeros(count, dtype=np.int32),
        version=np.zeros(count, dtype=np.int32),
    )


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=8)


def seen(layout: Layout, place: int) -> list[tuple[int, int]]:
    """Return (position, id) of all that the token at a place attends to, itself included."""
    row, column = divmod(place, layout.ids.shape[1])
    columns = np.arange(column + 1) if layout.mask is None else np.flatnonzero(layout.mask[row, 0, column])
    return sorted(zip(layout.positions[row, columns].tolist(), layout.ids[row, columns].tolist(), strict=True))


@given(paths, st.integers(1, 30), st.booleans())
def test_each_token_sees_its_own_past_and_nothing_else(found: list[list[int]], limit: int, tree: bool) -> None:
    sequences = [sequence(ids) for ids in found]
    members: list[int] = []
    for layout in layouts(sequences, limit, tree=tree):
        members += layout.members
        for member, places in zip(layout.members, layout.places, strict=True):
            for at, place in enumerate(places.tolist()):
                assert seen(layout, place) == list(enumerate(found[member][: at + 1]))
    assert sorted(members) == list(range(len(found)))


@given(paths, st.integers(1, 30), st.booleans())
def test_a_layout_keeps_to_its_limit_unless_one_sequence_is_longer(
    found: list[list[int]], limit: int, tree: bool
) -> None:
    for layout in layouts([sequence(ids) for ids in found], limit, tree=tree):
        distinct = {tuple(found[member]) for member in layout.members}
        assert layout.tokens <= limit or len(distinct) == 1 or layout.tokens <= max(map(len, distinct))


@given(paths)
def test_a_tree_holds_each_prefix_once(found: list[list[int]]) -> None:
    (layout,) = layouts([sequence(ids) for ids in found], 1000, tree=True)
    assert layout.tokens == len({tuple(ids[: end + 1]) for ids in found for end in range(len(ids))})


def test_equal_rollouts_cost_nothing_more() -> None:
    eight = [sequence([1, 2, 3, 4]) for _ in range(8)]
    for tree in (True, False):
        (layout,) = layouts(eight, 1000, tree=tree)
        assert layout.ids.tolist() == [[1, 2, 3, 4]]
        assert layout.mask is None
        assert len(targets(eight, layout).ids) == 3


def test_targets_lead_back_to_every_trained_token() -> None:
    sequences = [
        sequence([1, 2, 3], [False, False, True]),
        sequence([1, 2, 4], [False, True, True]),
        sequence([1, 2, 3], [False, False, True], temperature=0.5),
        sequence([1, 2, 3], [False, False, False]),
    ]
    (layout,) = layouts(sequences, 100, tree=True)
    found = targets(sequences, layout)
    tokens = [
        (layout.members[owner], int(found.ids[target]), float(found.temperature[target]))
        for owner, target in zip(found.owner.tolist(), found.inverse.tolist(), strict=True)
    ]
    assert sorted(tokens) == [(0, 3, 1.0), (1, 2, 1.0), (1, 4, 1.0), (2, 3, 0.5)]
    assert len(found.ids) == 4  # the 3 at two temperatures is two targets
    flat = layout.ids.reshape(-1)
    assert [int(flat[place]) for place in found.places] == [{2: 1, 3: 2, 4: 2}[target] for target in found.ids.tolist()]


@pytest.mark.parametrize("tree", [True, False])
def test_two_rollouts_that_share_a_target_share_its_logprob(tree: bool) -> None:
    sequences = [sequence([7, 8, 9]), sequence([7, 8, 9])]
    (layout,) = layouts(sequences, 100, tree=tree)
    found = targets(sequences, layout)
    assert found.inverse.tolist() == [0, 1, 0, 1]
    assert found.owner.tolist() == [0, 0, 1, 1]
