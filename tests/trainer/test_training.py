"""The optimizer steps of an update: what counts, and what ends a run before it does harm."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from storage.update_settings import UpdateSettings
from tests.trainer.test_layouts import sequence
from trainer.batches import Batch
from trainer.errors import UpdateFailed
from trainer.layouts import Layout, Targets
from trainer.training import Training

ANOTHER = 7
"""A version that sampled nothing of what is trained here."""


class Table:
    """A policy that gives each id a logprob of its own, in place of a model."""

    trains_trees = False

    def __init__(self, logprobs: list[float]) -> None:
        self.adapter = {"logprobs": torch.tensor(logprobs, requires_grad=True)}

    def sharing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def logprobs(self, _: Layout, targets: Targets) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.adapter["logprobs"][torch.as_tensor(targets.ids[targets.inverse])]
        return found, torch.full_like(found, 0.5)


@pytest.mark.parametrize("micro_batch_tokens", [1, 1024])
@pytest.mark.parametrize(("loss", "value"), [("grpo", -0.5), ("cispo", 0.5)])
def test_a_dropped_sequence_teaches_nothing_and_counts_in_the_divisor(
    loss: Any, value: float, micro_batch_tokens: int
) -> None:
    model: Any = Table([0.0, -1.0, -3.0])  # the recorded logprobs are −1
    settings = UpdateSettings(loss=loss, micro_batch_tokens=micro_batch_tokens)
    rows = Batch((sequence([0, 1]), sequence([0, 2])), np.array([1, -1], dtype=np.float32))
    progress: list[tuple[int, int]] = []
    metrics = Training(model, rows, settings, ANOTHER).run(lambda *news: progress.append(news))
    assert progress == ([(1, 2), (2, 2)] if micro_batch_tokens == 1 else [(1, 1)])
    assert model.adapter["logprobs"].grad.tolist() == [0, -0.5, 0]
    expected = {
        "loss": value,
        "grad_norm": 0.5,
        "entropy": 0.5,
        "kl": 1,
        "mean_abs_logprob_diff": 1,
        "clip_fraction": 0,
        "dropped_sequences": 1,
        "trained_tokens": 2,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def run(model: Any, rows: Batch, parent: int = ANOTHER, **settings: Any) -> dict[str, float]:
    return Training(model, rows, UpdateSettings(**settings), parent).run(lambda *_: None)


def one(advantage: float = 1.0) -> Batch:
    """A sequence of one trained token, 1; its recorded logprob is −1."""
    return Batch((sequence([0, 1]),), np.array([advantage], dtype=np.float32))


@pytest.mark.parametrize(("logprob", "fails"), [(-1.0, False), (-1.19, False), (-0.79, True), (-1.21, True)])
def test_what_the_parent_sampled_must_have_the_logprob_that_vllm_saw(logprob: float, fails: bool) -> None:
    model: Any = Table([0.0, logprob])
    if fails:
        with pytest.raises(UpdateFailed, match=r"engine mismatch: of 1 tokens that version 0 itself .* by 0\.210 in"):
            run(model, one(), parent=0)
        assert model.adapter["logprobs"].tolist() == pytest.approx([0.0, logprob]), "no step was taken"
    else:
        metrics = run(model, one(), parent=0)
        assert metrics["same_version_logprob_diff"] == pytest.approx(abs(logprob + 1.0), abs=1e-6)


def test_what_other_versions_sampled_may_differ() -> None:
    model: Any = Table([0.0, -2.0, -1.1])
    mine = replace(sequence([0, 2]), version=np.array([0, ANOTHER], dtype=np.int32))
    rows = Batch((sequence([0, 1]), mine), np.array([1, -1], dtype=np.float32))
    metrics = run(model, rows, parent=ANOTHER)
    assert metrics["same_version_tokens"] == 1
    assert metrics["same_version_logprob_diff"] == pytest.approx(0.1, abs=1e-6)
    assert metrics["ratio"] == pytest.approx((math.exp(-1.0) + math.exp(-0.1)) / 2)


def test_what_is_trained_again_is_neither_measured_nor_held_against_the_engine() -> None:
    model: Any = Table([0.0, -1.1, -4.0])
    again = np.array([False, True])
    rows = Batch((sequence([0, 1]), sequence([0, 2])), np.array([1, 1], dtype=np.float32), again)
    metrics = run(model, rows, parent=0, least_length=1.0)
    assert model.adapter["logprobs"].grad.tolist() == pytest.approx([0, -math.exp(-0.1) / 2, -0.5])
    assert (metrics["trained_tokens"], metrics["replayed_tokens"], metrics["same_version_tokens"]) == (2, 1, 1)
    found = {name: metrics[name] for name in ("kl", "mean_abs_logprob_diff", "ratio", "entropy")}
    assert found == pytest.approx({"kl": 0.1, "mean_abs_logprob_diff": 0.1, "ratio": math.exp(-0.1), "entropy": 0.5})


def test_where_nothing_is_new_there_is_nothing_to_measure() -> None:
    model: Any = Table([0.0, -4.0])
    rows = Batch((sequence([0, 1]),), np.array([1], dtype=np.float32), np.array([True]))
    metrics = run(model, rows, parent=0, least_entropy=1.0, least_length=9.0)
    assert metrics["loss"] == pytest.approx(4.0)
    assert metrics.keys().isdisjoint({"kl", "entropy", "ratio", "mean_abs_logprob_diff", "clip_fraction"})


def test_the_guard_is_measured_once_at_the_first_forward() -> None:
    """The first step makes the bad answer so unlikely that a second look would drop it."""
    model: Any = Table([0.0, -1.4])
    metrics = run(model, one(-1.0), steps=2, learning_rate=0.5, loss="cispo")
    assert metrics["dropped_sequences"] == 0
    assert model.adapter["logprobs"].tolist()[1] < -2.2, "two steps of about 0.5"
    far: Any = Table([0.0, -1.6])
    assert run(far, one(-1.0), steps=2, learning_rate=0.5, loss="cispo")["dropped_sequences"] == 1
    assert far.adapter["logprobs"].tolist() == pytest.approx([0.0, -1.6])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"least_entropy": 0.6}, r"the policy has collapsed: its mean entropy is 0\.5, below 0\.6"),
        ({"least_length": 2.0}, r"the policy has collapsed: its mean length is 1, below 2"),
        ({"most_grad_norm": 0.5}, r"the gradient exploded: its norm is 1, above 0\.5"),
    ],
)
def test_a_collapse_ends_the_run_before_a_step(settings: dict[str, Any], reason: str) -> None:
    model: Any = Table([0.0, -1.0])
    with pytest.raises(UpdateFailed, match=reason):
        run(model, one(), **settings)
    assert model.adapter["logprobs"].tolist() == [0.0, -1.0]


@pytest.mark.parametrize(
    ("loss", "logprob", "reason"),
    [
        ("cispo", math.nan, "the loss is not a finite number"),
        ("cispo", -math.inf, "the loss is not a finite number"),
        ("grpo", math.nan, "the loss is not a finite number"),
        ("grpo", -math.inf, "a weight is not a finite number"),
    ],
)
def test_numbers_that_are_none_end_the_run(loss: str, logprob: float, reason: str) -> None:
    model: Any = Table([0.0, logprob])
    with pytest.raises(UpdateFailed, match=reason):
        run(model, one(), loss=loss)


def test_a_weight_that_is_no_number_after_the_step_ends_the_run() -> None:
    model: Any = Table([0.0, -1.0, math.inf])
    with pytest.raises(UpdateFailed, match="a weight is not a finite number after the step"):
        run(model, one())


def test_a_trajectory_weighs_as_much_in_two_sequences_as_in_one() -> None:
    """Two answers of one session, once behind each other and once as branches, beside another session."""
    other = sequence([3, 1])
    linear = sequence([0, 1, 2, 2], [False, True, False, True])
    branches = (sequence([0, 1]), sequence([0, 9, 2, 2], [False, False, False, True]))
    gradients = []
    for rows in ((linear, other), (*branches, other)):
        model: Any = Table([-1.0] * 10)
        values = np.array([0.5] * (len(rows) - 1) + [-0.5], dtype=np.float32)
        run(model, Batch(rows, values), loss="cispo")
        gradients.append(model.adapter["logprobs"].grad.tolist())
    assert gradients[0] == gradients[1]
