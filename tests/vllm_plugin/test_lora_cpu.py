"""The repaired LoRA functions against the definition, row by row, and against vLLM's own where that is right."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.vllm_plugin import lora_cpu

RANK, WIDTH, SLOTS = 4, 12, 3

indices = st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=9)
dtypes = st.sampled_from([torch.float32, torch.bfloat16])


def _draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _by_definition(
    inputs: torch.Tensor, weights: torch.Tensor, slots: list[int], dtype: torch.dtype
) -> dict[int, torch.Tensor]:
    """Row → product, for the rows that have an adapter; both factors in the type of the output, as in vLLM."""
    return {
        row: (inputs[row].to(dtype).float() @ weights[slot].reshape(weights.shape[-2:]).to(dtype).float().T).to(dtype)
        for row, slot in enumerate(slots)
        if slot >= 0
    }


def _close(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> None:
    # bf16 keeps 8 bits; two roundings of values up to about 20 differ by at most 0.125.
    tolerance = 0.13 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(left, right, atol=tolerance, rtol=0.01)


@given(slots=indices, dtype=dtypes, four=st.booleans(), seed=st.integers(0, 99))
@settings(deadline=None)
def test_shrink(slots: list[int], dtype: torch.dtype, four: bool, seed: int) -> None:
    inputs = _draw(seed, len(slots), WIDTH, dtype=dtype)
    weights = _draw(seed + 1, SLOTS, RANK, WIDTH, dtype=dtype)
    output = torch.full((len(slots), RANK + 2), 7.0)
    expected = output.clone()
    for row, product in _by_definition(inputs, weights, slots, torch.float32).items():
        expected[row, :RANK] = 0.5 * product
    lora_cpu.bgmv_shrink(inputs, weights.unsqueeze(1) if four else weights, output, torch.tensor(slots), 0.5)
    _close(output, expected, torch.float32)


@given(slots=indices, dtype=dtypes, add=st.booleans(), narrow=st.integers(-2, 2), seed=st.integers(0, 99))
@settings(deadline=None)
def test_expand(slots: list[int], dtype: torch.dtype, add: bool, narrow: int, seed: int) -> None:
    inputs = _draw(seed, len(slots), RANK)
    weights = _draw(seed + 1, SLOTS, WIDTH, RANK, dtype=dtype)
    output = _draw(seed + 2, len(slots), WIDTH - narrow, dtype=dtype)
    common = min(WIDTH, WIDTH - narrow)
    expected = output.clone()
    for row, product in _by_definition(inputs, weights, slots, dtype).items():
        before = expected[row, :common] if add else torch.zeros(common, dtype=dtype)
        expected[row, :common] = before + product[:common]
    lora_cpu.bgmv_expand(inputs, weights, output, torch.tensor(slots), add)
    _close(output, expected, dtype)


@given(slots=indices, dtype=dtypes, add=st.booleans(), offset=st.integers(0, 5), seed=st.integers(0, 99))
@settings(deadline=None)
def test_expand_slice(slots: list[int], dtype: torch.dtype, add: bool, offset: int, seed: int) -> None:
    inputs = _draw(seed, len(slots), RANK)
    weights = _draw(seed + 1, SLOTS, 1, WIDTH, RANK, dtype=dtype)
    output = _draw(seed + 2, len(slots), WIDTH + 5, dtype=dtype)
    expected = output.clone()
    for row, product in _by_definition(inputs, weights, slots, dtype).items():
        before = expected[row, offset : offset + WIDTH] if add else torch.zeros(WIDTH, dtype=dtype)
        expected[row, offset : offset + WIDTH] = before + product
    lora_cpu.bgmv_expand_slice(inputs, weights, output, torch.tensor(slots), offset, WIDTH, add)
    _close(output, expected, dtype)


@pytest.mark.parametrize("add", [True, False])
def test_rows_without_an_adapter_keep_every_bit(add: bool) -> None:
    output = _draw(0, 4, WIDTH, dtype=torch.bfloat16)
    before = output.clone()
    weights = _draw(1, SLOTS, WIDTH, RANK, dtype=torch.bfloat16)
    lora_cpu.bgmv_expand(_draw(2, 4, RANK), weights, output, torch.tensor([-1, 2, -1, 0]), add)
    assert torch.equal(output[[0, 2]], before[[0, 2]])
    assert not torch.equal(output[[1, 3]], before[[1, 3]])
    untouched = output.clone()
    lora_cpu.bgmv_expand(_draw(2, 4, RANK), weights, output, torch.tensor([-1] * 4), add)
    assert torch.equal(output, untouched)


def test_one_token_may_stand_for_many_rows() -> None:
    output = torch.zeros(3, WIDTH)
    inputs, weights = _draw(0, 1, RANK), _draw(1, SLOTS, WIDTH, RANK)
    lora_cpu.bgmv_expand(inputs, weights, output, torch.tensor([1]))
    torch.testing.assert_close(output, (inputs @ weights[1].T).expand(3, WIDTH))


@pytest.mark.parametrize("slots", [[0, 0, 0], [2, 0, 1]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vllm_itself_agrees_where_every_token_has_an_adapter(slots: list[int], dtype: torch.dtype) -> None:
    theirs = importlib.import_module("vllm.lora.ops.torch_ops.lora_ops")
    assert not getattr(theirs, lora_cpu._MARK, False), "this test compares with vLLM's unmended functions"
    down, up = _draw(0, SLOTS, 1, RANK, WIDTH, dtype=dtype), _draw(1, SLOTS, 1, WIDTH, RANK, dtype=dtype)
    inputs, start = _draw(2, 3, WIDTH, dtype=dtype), _draw(3, 3, 2 * WIDTH, dtype=dtype)
    results = []
    for module in (theirs, lora_cpu):
        buffer, output = torch.zeros(3, RANK), start.clone()
        module.bgmv_shrink(inputs, down, buffer, torch.tensor(slots), 2.0)
        module.bgmv_expand(buffer, up, output, torch.tensor(slots), add_inputs=True)
        module.bgmv_expand_slice(buffer, up, output, torch.tensor(slots), WIDTH, WIDTH, add_inputs=False)
        results.append(output)
    _close(results[0], results[1], dtype)


@pytest.mark.parametrize("name", ["bgmv_expand", "bgmv_expand_slice", "bgmv_shrink"])
def test_one_graph_under_torch_compile(name: str) -> None:
    """vLLM compiles its models as one whole graph, in which Python must not branch on the indices."""
    plain: Callable[..., None] = getattr(lora_cpu, name)
    opaque = lora_cpu._opaque(plain)
    rest: tuple[Any, ...] = {"bgmv_expand_slice": (2, RANK)}.get(name, ())
    inputs, weights, slots = _draw(0, 4, WIDTH), _draw(1, SLOTS, RANK, WIDTH), torch.tensor([0, -1, 2, 0])

    def layer(output: torch.Tensor) -> torch.Tensor:
        opaque(inputs, weights, output, slots, *rest)
        return output * 2

    expected = torch.ones(4, RANK + 4)
    plain(inputs, weights, expected, slots, *rest)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.ones(4, RANK + 4)), expected * 2)
