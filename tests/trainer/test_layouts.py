from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.batches import Sequence
from trainer.layouts import Layout, laid_out, layouts, targets


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
    before = [(at, int(token)) for stem in layout.chain for at, token in enumerate(stem.ids, stem.start)]
    if place < len(before):
        return before[: place + 1]
    row, column = divmod(place - len(before), layout.ids.shape[1])
    columns = np.arange(column + 1) if layout.mask is None else np.flatnonzero(layout.mask[row, 0, column])
    own = zip(layout.positions[row, columns].tolist(), layout.ids[row, columns].tolist(), strict=True)
    return sorted([*before, *own])


@given(paths, st.integers(1, 30), st.booleans(), st.integers(1, 4))
def test_each_token_sees_its_own_past_and_nothing_else(
    found: list[list[int]], limit: int, tree: bool, least_stem: int
) -> None:
    sequences = [sequence(ids) for ids in found]
    members: list[int] = []
    for layout in layouts(sequences, limit, tree=tree, least_stem=least_stem):
        members += layout.members
        assert layout.tokens
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


@given(paths, st.integers(1, 30))
def test_stems_let_each_prefix_through_the_model_once(found: list[list[int]], limit: int) -> None:
    """Where no sequence is the beginning of another: each ends in a token of its own."""
    ended = [[*ids, 10 + number] for number, ids in enumerate(found)]
    parts = layouts([sequence(ids) for ids in ended], limit, tree=True, least_stem=1)
    assert laid_out(parts) == len({tuple(ids[: end + 1]) for ids in ended for end in range(len(ids))})


def test_a_group_of_sessions_shares_the_stem_that_does_not_fit_beside_them() -> None:
    """A prompt of 40 tokens, and answers of 30 that a limit of 60 has room for one by one."""
    prompt = list(range(100, 140))
    sessions = [sequence([*prompt, *range(30 * number, 30 * number + 30)]) for number in range(3)]
    parts = list(layouts(sessions, 60, tree=True))
    assert [len(part.chain) for part in parts] == [1, 1, 1]
    assert len({id(part.stem) for part in parts}) == 1
    assert [part.tokens for part in parts] == [30, 30, 30]
    assert laid_out(parts) == 130
    assert laid_out(layouts(sessions, 60, tree=True, least_stem=41)) == 210


def test_long_sessions_without_branches_have_no_mask() -> None:
    """Linear sessions longer than the limit, alone and with a common beginning; equal ones are one row."""
    long, short = list(range(32000)), list(range(900))
    other = [*long[:20000], *range(40000, 50000)]
    for found in ([long], [long, long], [long, other], [long, other, short], [long, long[:5000]]):
        parts = list(layouts([sequence(ids) for ids in found], 1024, tree=True))
        assert [part.mask for part in parts] == [None] * len(parts)
        # The last token of a session that another one goes on from is not in the stem, and twice in the model.
        assert laid_out(parts) == len(long) + (10000 if other in found else 0) + (1 if short in found else 0)


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
