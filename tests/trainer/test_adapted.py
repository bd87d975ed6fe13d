"""The adapted linear layer against peft's own, in float64."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer import adapted


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def layers(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """peft's layer, and a copy of it in which ours is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what peft imports
        from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    plain = get_peft_model(
        nn.Sequential(nn.Linear(5, 7, bias=request.param), nn.SiLU()),
        LoraConfig(r=3, lora_alpha=6, target_modules=["0"]),
    ).double()
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            if ".lora_B." in name:
                weight.normal_()
    ours = deepcopy(plain)
    adapted.install(ours)
    return plain, ours


def passed(model: Any, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of a function of it for x, A and B."""
    x = x.clone().requires_grad_()
    out = model(x)
    torch.autograd.backward((out * torch.arange(out.numel()).view(out.shape)).sum())
    grads = [weight.grad for weight in model.parameters() if weight.requires_grad]
    return [out.detach(), *(grad for grad in (x.grad, *grads) if grad is not None)]


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5)])
def test_output_and_gradients_are_those_of_peft(layers: tuple[Any, Any], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    theirs, found = (passed(model, x) for model in layers)
    assert len(found) == len(theirs) == 4
    for own, wanted in zip(found, theirs, strict=True):
        assert torch.allclose(own, wanted, rtol=1e-12, atol=1e-12)


def test_it_can_be_disabled(layers: tuple[Any, Any]) -> None:
    plain, ours = layers
    x = torch.randn(4, 5, dtype=torch.float64)
    with ours.disable_adapter():
        base = ours(x)
    with plain.disable_adapter():
        assert torch.equal(base, plain(x))
    assert not torch.equal(base, ours(x))


def test_what_is_kept_for_the_backward_pass_has_the_model_s_precision() -> None:
    layer = nn.Linear(5, 7, dtype=torch.bfloat16)
    a, b = (torch.randn(3, 5, requires_grad=True), torch.randn(7, 3, requires_grad=True))
    kept: list[torch.dtype] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = adapted._Adapted.apply(torch.randn(4, 5, dtype=torch.bfloat16), layer.weight, layer.bias, a, b, 2.0)  # type: ignore[no-untyped-call]
    assert set(kept) == {torch.bfloat16}
    torch.autograd.backward(out.sum())
    assert a.grad is not None
    assert (out.dtype, a.grad.dtype) == (torch.bfloat16, torch.float32)
