"""Both losses, their guard and their KL term, against TRL's own on the same numbers."""

from __future__ import annotations

import warnings
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from trainer.loss import CISPO_CAP, GUARD, Tokens, cispo, divergence, grpo, too_far

pytestmark = pytest.mark.e2e

ROWS, LENGTH = 6, 5


@pytest.fixture(scope="module")
def trl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer.grpo_trainer import GRPOTrainer
    return GRPOTrainer


@pytest.fixture
def numbers() -> dict[str, Tensor]:
    """(B, T) on policy, past the clip, past the cap, and far below with a bad reward."""
    torch.manual_seed(2)
    logprobs = -torch.rand(ROWS, LENGTH, dtype=torch.float64) * 3
    spread = torch.tensor([0.05, 0.3, 2.5, 0.3, 0.3, 0.3], dtype=torch.float64)[:, None]
    shift = torch.tensor([0.0, 0.0, -1.0, 1.0, 1.0, 0.0], dtype=torch.float64)[:, None]
    return {
        "logprobs": logprobs,
        "recorded": logprobs + spread * torch.randn(ROWS, LENGTH, dtype=torch.float64) + shift,
        "base": logprobs + 0.2 * torch.randn(ROWS, LENGTH, dtype=torch.float64),
        "mask": torch.tensor([[1] * (5 - row % 3) + [0] * (row % 3) for row in range(ROWS)]),
        "advantages": torch.tensor([0.5, -0.25, 0.75, -0.5, 0.5, -1.0], dtype=torch.float64),
    }


def theirs(trl: Any, numbers: dict[str, Tensor], loss: str, beta: float) -> tuple[Tensor, Tensor]:
    """TRL's loss and its gradient in the logprobs."""
    logprobs = numbers["logprobs"].clone().requires_grad_()
    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = (logprobs, torch.ones(ROWS, LENGTH), None)
    trainer.get_off_policy_mask = trl.get_off_policy_mask
    trainer.configure_mock(
        top_entropy_quantile=1.0, aux_loss_enabled=False, off_policy_mask_threshold=GUARD, beta=beta,
        importance_sampling_level="token", epsilon_low=0.2, epsilon_high=CISPO_CAP if loss == "cispo" else 0.28,
        loss_type="cispo" if loss == "cispo" else "dapo", use_vllm=False, _entropy_bonus_enabled=False,
    )  # fmt: skip
    trainer.args.configure_mock(use_bias_correction_kl=True, delta=None)
    trainer.model.training = False  # nothing is divided by the number of micro-batches
    trainer.accelerator.num_processes = 1
    for name in ("gather", "gather_for_metrics", "reduce"):  # for its metrics
        getattr(trainer.accelerator, name).side_effect = lambda value, **_: value
    prompt = torch.zeros(ROWS, 1, dtype=torch.int64)
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": torch.zeros(ROWS, LENGTH, dtype=torch.int64),
        "completion_mask": numbers["mask"],
        "advantages": numbers["advantages"],
        "old_per_token_logps": numbers["recorded"],
        "ref_per_token_logps": numbers["base"],
        "num_items_in_batch": numbers["mask"].sum(),
    }
    found: Tensor = trl._compute_loss(trainer, None, inputs)
    torch.autograd.backward(found)
    assert logprobs.grad is not None
    return found.detach(), logprobs.grad


def ours(numbers: dict[str, Tensor], loss: str, beta: float) -> tuple[Tensor, Tensor, int]:
    inside = numbers["mask"].bool()
    owner = torch.arange(ROWS)[:, None].expand(ROWS, LENGTH)[inside]
    logprobs = numbers["logprobs"].clone().requires_grad_()
    kept_logprobs, recorded = logprobs[inside], numbers["recorded"][inside]
    advantages = numbers["advantages"][owner]
    dropped = too_far(kept_logprobs, recorded, advantages, owner, ROWS)
    tokens = Tokens(kept_logprobs, recorded, advantages, ~dropped[owner])
    count = int(inside.sum())
    total = (cispo(tokens, count) if loss == "cispo" else grpo(tokens, count)).loss
    if beta:
        everything = Tokens(kept_logprobs, recorded, advantages, torch.ones_like(dropped[owner]))
        total = total + beta * divergence(everything, numbers["base"][inside], count)
    torch.autograd.backward(total)
    assert logprobs.grad is not None
    return total.detach(), logprobs.grad, int(dropped.sum())


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", ["grpo", "cispo"])
def test_loss_and_gradient_are_those_of_trl(trl: Any, numbers: dict[str, Tensor], loss: str, beta: float) -> None:
    """But for one thing: TRL's KL term counts for dropped sequences, too; here it is told to."""
    found, gradient, dropped = ours(numbers, loss, beta)
    wanted, their_gradient = theirs(trl, numbers, loss, beta)
    assert dropped == 1
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert torch.allclose(gradient, their_gradient, rtol=1e-6, atol=1e-12)
