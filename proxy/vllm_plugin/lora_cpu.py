"""The repair of vLLM 0.32's LoRA arithmetic on CPUs.

`vllm/lora/ops/torch_ops/lora_ops.py` gathers a copy of the adapter's matrices for every single token
(`weights[indices]`), which is slow, and takes the index −1 of a token without adapter for the *last* slot,
which is wrong: a call to the base model that shares a batch with an adapter's call is answered by that
adapter. Here every adapter that is present in the batch costs one matmul over its own rows, and rows of
index −1 are left as they are. Data types and rounding are vLLM's: both factors are cast to the type of the
output before they are multiplied.

Only the three `bgmv_*` functions are replaced: the `sgmv_*` ones look them up in the same module at each call.
"""

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .settings import PluginError

_log = logging.getLogger("vllm.slipstream")

_NAMES = ("bgmv_expand", "bgmv_expand_slice", "bgmv_shrink")
_DEFINED_IN = "vllm.lora.ops.torch_ops.lora_ops"
_EXPORTED_BY = "vllm.lora.ops.torch_ops"
_IMPORTED_BY = "vllm.lora.punica_wrapper.punica_cpu"
_MARK = "mended_by_slipstream"


def _products(
    inputs: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor | None, torch.Tensor]]:
    """Yields, for each adapter present, the rows that it owns (None: all of them) and their products.

    Args:
        inputs: (tokens, in)
        weights: (slots, out, in) or (slots, 1, out, in)
        indices: (tokens,), the slot of each token's adapter, −1 for none
        dtype: of the product, that is of the tensor it goes to

    """
    if weights.dim() == 4:
        weights = weights.squeeze(1)
    slots = sorted(set(indices.tolist()))
    if len(slots) == 1 and slots[0] >= 0:
        # The usual batch: all tokens under one version. No rows to pick, no copies of them.
        yield None, inputs.to(dtype) @ weights[slots[0]].to(dtype).T
        return
    for slot in slots:
        if slot >= 0:
            rows = (indices == slot).nonzero().squeeze(1)
            yield rows, inputs[rows].to(dtype) @ weights[slot].to(dtype).T


def _store(target: torch.Tensor, rows: torch.Tensor | None, product: torch.Tensor, *, add_inputs: bool) -> None:
    """Writes the products of one adapter into `target`: (rows of the output, columns of the product)."""
    where: Any = slice(None)
    if rows is None:
        # More tokens than rows are cut off, and one token may stand for many rows, as in vLLM.
        product = product[: target.shape[0]]
    else:
        kept = rows < target.shape[0]
        where, product = rows[kept], product[kept]
    if add_inputs:
        target[where] += product
    else:
        target[where] = product


def bgmv_shrink(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    scaling: float = 1.0,
) -> None:
    """output[:, :rank] = scaling · (inputs @ Aᵀ), each row by its own adapter.

    The argument names are vLLM's, down to `lora_b_weights`, which holds A: callers may name them.
    """
    for rows, product in _products(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype):
        target = output_tensor[:, : product.shape[1]]
        _store(target, rows, scaling * product, add_inputs=False)


def bgmv_expand(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    add_inputs: bool = True,
) -> None:
    """output[:, :common] (+)= inputs @ Bᵀ; adapter and model may pad the output's width differently."""
    for rows, product in _products(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype):
        common = min(product.shape[1], output_tensor.shape[1])
        target = output_tensor[:, :common]
        _store(target, rows, product[:, :common], add_inputs=add_inputs)


def bgmv_expand_slice(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """output[:, offset : offset + size] (+)= inputs @ Bᵀ: one of the matrices that a layer holds stacked."""
    target = output_tensor[:, slice_offset : slice_offset + slice_size]
    for rows, product in _products(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype):
        _store(target, rows, product, add_inputs=add_inputs)


def _opaque(function: Callable[..., None]) -> Callable[..., None]:
    """The function as it is, but as one operator where torch.compile traces it.

    Which adapters are present is only known at run time, and vLLM compiles its models as one whole graph,
    which allows no branch on data. (vLLM on a CPU compiles unless it is started with `--enforce-eager`.)
    """
    operator = torch.library.custom_op(f"slipstream::{function.__name__}", function, mutates_args=("output_tensor",))
    operator.register_fake(lambda *_args, **_kwargs: None)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            operator(*args, **kwargs)
        else:
            function(*args, **kwargs)

    return call


def install() -> None:
    """Puts the three functions into vLLM, wherever it has already bound the old ones. May be called again.

    Raises:
        PluginError: one of them is not where this version of vLLM had it.

    """
    defined = importlib.import_module(_DEFINED_IN)
    missing = [name for name in _NAMES if not hasattr(defined, name)]
    if missing:
        raise PluginError(f"slipstream: {_DEFINED_IN} has no {', '.join(missing)}: the CPU LoRA repair does not fit")
    if getattr(defined, _MARK, False):
        return
    mended = {function.__name__: _opaque(function) for function in (bgmv_expand, bgmv_expand_slice, bgmv_shrink)}
    # punica_cpu is imported later, and then takes the new names from the package; unless it was faster.
    for module in filter(None, map(sys.modules.get, (_DEFINED_IN, _EXPORTED_BY, _IMPORTED_BY))):
        for name, function in mended.items():
            setattr(module, name, function)
    setattr(defined, _MARK, True)
    _log.info("slipstream: vLLM's CPU LoRA functions are replaced: %s", ", ".join(_NAMES))
