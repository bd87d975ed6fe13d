"""The settings of an update: those of the installation, and what a request for a run says otherwise.

They stand here since the proxy refuses a wrong one at the request, and the trainer works with them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class UpdateSettings(BaseModel):
    """The few dials of an update. Unknown names are refused, and so is what no update could work with."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning_rate: float = Field(default=2e-4, gt=0)
    """2e-4 below 1B parameters (measured at 135M), 1e-5 to 5e-5 for large models."""
    loss: Literal["grpo", "cispo"] = "cispo"
    steps: int = Field(default=1, ge=1, le=1000)
    """Optimizer steps; each is a pass over the whole batch."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    clip_high: float = Field(default=0.28, ge=0)
    """DAPO's higher bound of the ratio (arXiv 2503.14476), less 1. Only for the loss ``grpo``."""
    rank: int = Field(default=16, ge=1, le=512)
    """vLLM serves 1, 8, 16, 32, 64, 128, ..."""
    alpha: int = Field(default=32, ge=1, le=4096)
    max_grad_norm: float = Field(default=1.0, gt=0)
    kl_weight: float = Field(default=0.0, ge=0)
    """Of the KL divergence to the base model. Above 0 it costs a second forward pass per step."""
    divide_by_deviation: bool = False
    """Whether a group's advantages are divided by the standard deviation of its rewards, as GRPO does."""
    replay: bool = False
    """Whether groups that hold the best of their scenario are trained again while new ones do not reach it."""
    least_entropy: float = Field(default=0.0, ge=0)
    """Nats per token, mean over the batch, below which a run fails: the policy repeats itself."""
    least_length: float = Field(default=0.0, ge=0)
    """Sampled tokens of a sequence, mean over the batch, below which a run fails: the policy says nothing."""
    most_grad_norm: float = Field(default=1000.0, gt=0)
    """Before the clip; above it a run fails, for the batch is not one to learn from."""
    micro_batch_tokens: int = Field(default=1024, ge=1, le=2**24)
    """Tokens that go through the model at once; a longer sequence goes alone. Bounds the memory."""
