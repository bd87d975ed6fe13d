"""Attention to stems and to a row with branches, against one softmax over a mask of everything."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from trainer.attention import Surroundings, additive, attend, supports

HEADS, KEY_HEADS, SIZE = 4, 2, 8
ROW = 5
BRANCHED = torch.tensor(
    [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]], dtype=torch.bool
)


def formula(query: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
    keys, values = (tensor.repeat_interleave(HEADS // KEY_HEADS, 1) for tensor in (keys, values))
    scores = (query @ keys.transpose(2, 3)) * 0.3
    return (scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ values).transpose(1, 2)


@pytest.mark.parametrize("branched", [False, True])
@pytest.mark.parametrize("stems", [[], [3], [3, 1, 6]])
def test_values_and_gradients_are_those_of_one_softmax(stems: list[int], branched: bool) -> None:
    torch.manual_seed(0)
    before, total = sum(stems), sum(stems) + ROW
    query = torch.randn(1, HEADS, ROW, SIZE, dtype=torch.float64, requires_grad=True)
    keys, values = (torch.randn(1, KEY_HEADS, total, SIZE, dtype=torch.float64, requires_grad=True) for _ in range(2))
    own = BRANCHED if branched else torch.ones(ROW, ROW, dtype=torch.bool).tril()
    allowed = torch.cat([torch.ones(ROW, before, dtype=torch.bool), own], dim=1)
    sizes = [*stems, ROW]
    pieces = list(zip(torch.split(keys, sizes, 2), torch.split(values, sizes, 2), strict=True))
    mask = additive(own[None, None], torch.float64) if branched else None
    around = Surroundings([{7: pair} for pair in pieces[:-1]], mask, kept={})
    layer = SimpleNamespace(layer_idx=7)

    found, _ = attend(layer, query, *pieces[-1], None, scaling=0.3, surroundings=around)
    wanted = formula(query, keys, values, allowed)
    assert torch.allclose(found, wanted, atol=1e-12)
    weight = torch.randn_like(wanted)
    grads = [torch.autograd.grad((out * weight).sum(), (query, keys, values)) for out in (found, wanted)]
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    assert around.kept is not None
    assert around.kept[7][0] is pieces[-1][0]


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, True),
        ({"sliding_window": None, "layer_types": ["full_attention"] * 3}, True),
        ({"sliding_window": 4096, "use_sliding_window": False}, True),
        ({"sliding_window": 4096}, False),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"attn_logit_softcapping": 50.0}, False),
    ],
)
def test_models_with_a_window_or_a_cap_keep_their_own_attention(config: dict[str, object], wanted: bool) -> None:
    assert supports(SimpleNamespace(**config)) is wanted
