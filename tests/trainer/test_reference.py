"""Loss and gradient of the product's own code against the formula in float64: one row a sequence, nothing shared."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from storage.update_settings import UpdateSettings
from trainer import layouts
from trainer.batches import Batch, Sequence
from trainer.errors import JobInvalid
from trainer.policy_model import PolicyModel, Shape
from trainer.recomputing import recompute
from trainer.training import Training

VOCABULARY = 50
ANOTHER = 7
"""A parent that sampled nothing of the batch."""


@pytest.fixture(scope="module")
def tiny() -> Any:
    """A random Llama of two layers with LoRA, in float64; B is random, too, so that every weight has a gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what peft imports
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=4, lora_alpha=8, target_modules=layers)).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0, 0.1)
    return model


@pytest.fixture(params=["tree", "stems", "padded"])
def model(tiny: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[PolicyModel]:
    found = PolicyModel(tiny, Shape("tiny", 4, 8), Path())
    assert found.trains_trees
    found.trains_trees = request.param != "padded"
    if request.param == "stems":
        monkeypatch.setattr(layouts, "LEAST_STEM", 2)
    before = {name: weight.detach().clone() for name, weight in found.adapter.items()}
    yield found
    with torch.no_grad():
        for name, weight in found.adapter.items():
            weight.copy_(before[name])
            weight.grad = None


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


def made(ids: list[int], answers: list[tuple[int, int, Sampling]]) -> Sequence:
    """A sequence whose answers stand at ``begin:end``, each sampled in its own way; logprobs come later."""
    count = len(ids)
    trained = np.zeros(count, dtype=np.bool_)
    temperature, top_p, top_k = np.ones(count), np.ones(count), np.zeros(count, dtype=np.int32)
    for begin, end, sampling in answers:
        trained[begin:end] = True
        temperature[begin:end], top_p[begin:end] = sampling.temperature, sampling.top_p
        top_k[begin:end] = sampling.top_k
    zeros = np.zeros(count)
    return Sequence(ids, trained, zeros, temperature, top_p, top_k, zeros)  # type: ignore[arg-type]  # lists are taken


def truncated(scaled: Tensor, target: int, top_p: float, top_k: int) -> Tensor:
    """The formula: the best ``top_k``, of these the fewest that hold ``top_p`` of their mass, and the target."""
    values = scaled.detach().tolist()
    order = sorted(range(len(values)), key=lambda token: -values[token])
    kept = order[:top_k] if top_k else order
    mass = torch.softmax(scaled.detach()[torch.tensor(kept)], dim=0)
    inside, total = [], 0.0
    for token, part in zip(kept, mass.tolist(), strict=True):
        if total >= top_p:
            break
        inside.append(token)
        total += part
    mask = torch.full_like(scaled, float("-inf"))
    mask[torch.tensor([*inside, target])] = 0
    return scaled + mask


def naive_logprobs(model: PolicyModel, sequence: Sequence) -> Tensor:
    """(T,) of the trained tokens: the whole sequence alone through the whole model."""
    logits = model._model(input_ids=torch.tensor([sequence.ids.tolist()])).logits[0]
    found = []
    for place in np.flatnonzero(sequence.trained).tolist():
        target = int(sequence.ids[place])
        scaled = logits[place - 1] / float(sequence.temperature[place])
        kept = truncated(scaled, target, float(sequence.top_p[place]), int(sequence.top_k[place]))
        found.append(torch.log_softmax(kept, dim=0)[target])
    return torch.stack(found)


def naive_loss(model: PolicyModel, batch: Batch, settings: UpdateSettings) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    count = sum(int(sequence.trained.sum()) for sequence in batch.sequences)
    of_each = zip(batch.sequences, batch.advantages.tolist(), batch.replayed.tolist(), strict=True)
    for sequence, advantage, replayed in of_each:
        logprobs = naive_logprobs(model, sequence)
        recorded = torch.tensor(sequence.logprobs[sequence.trained].astype(np.float64))
        if advantage < 0 and float((recorded - logprobs.detach()).mean()) > 0.5:
            continue
        ratio = (logprobs - recorded).exp()
        if replayed:
            weight = ratio.detach().clamp(max=2.0)
            total = total - ((weight.clamp(min=1.0) if advantage > 0 else weight) * advantage * logprobs).sum()
            continue
        if settings.loss == "cispo":
            objective = ratio.detach().clamp(max=5.0) * advantage * logprobs
        else:
            objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        total = total - objective.sum()
        if settings.kl_weight:
            with model._model.disable_adapter(), torch.no_grad():
                base = naive_logprobs(model, sequence)
            difference = base - logprobs
            total = total + settings.kl_weight * (ratio * (difference.exp() - difference - 1)).sum()
    return total / count


def batch_of(model: PolicyModel) -> Batch:
    """Twelve sequences in three families: equal ones, branches, several turns, all ways of sampling, some far off."""
    chance = np.random.default_rng(3)
    plain, cool = Sampling(), Sampling(0.7)
    narrow, both = Sampling(1.0, 0.8), Sampling(1.3, 0.9, 7)
    rows = []
    for family in range(3):
        head = chance.integers(0, VOCABULARY, 6).tolist()
        first = chance.integers(0, VOCABULARY, 4).tolist()
        more = chance.integers(0, VOCABULARY, 5).tolist()
        rows.append(made(head + first, [(6, 10, plain)]))
        rows.append(made(head + first, [(6, 10, narrow if family else plain)]))
        rows.append(made(head + first + more, [(6, 10, cool), (12, 15, both)]))
        rows.append(made([*head, *first[:2], *more], [(9, 13, narrow)]))
    with torch.no_grad():
        found = [naive_logprobs(model, row).numpy() for row in rows]
    recorded = []
    for number, (row, logprobs) in enumerate(zip(rows, found, strict=True)):
        spread = (0.05, 0.4, 1.5)[number % 3]  # on policy; past the clip; past the cap and the guard
        noise = chance.normal(0, spread, len(logprobs)) + (0.8 if number % 4 == 3 else 0.0)
        values = np.zeros(len(row), dtype=np.float32)
        values[row.trained] = np.minimum(logprobs + noise, 0.0)
        recorded.append(Sequence(row.ids, row.trained, values, row.temperature, row.top_p, row.top_k, row.version))
    return Batch(tuple(recorded), np.array([0.5, -0.5, 0.25, -0.25] * 3, dtype=np.float32))


@pytest.mark.parametrize("micro_batch_tokens", [12, 4096])
@pytest.mark.parametrize("kl_weight", [0.0, 0.1])
@pytest.mark.parametrize("loss", ["grpo", "cispo"])
@pytest.mark.parametrize("replayed", [False, True])
def test_loss_and_gradient_are_those_of_the_formula(
    model: PolicyModel, loss: Any, kl_weight: float, micro_batch_tokens: int, replayed: bool
) -> None:
    settings = UpdateSettings(
        loss=loss, kl_weight=kl_weight, micro_batch_tokens=micro_batch_tokens, max_grad_norm=1e9, most_grad_norm=1e9
    )
    batch = batch_of(model)
    if replayed:  # of all kinds some, in one family with those that are new
        batch = replace(batch, replayed=np.arange(12) % 5 < 2)
    expected = naive_loss(model, batch, settings)
    torch.autograd.backward(expected)
    wanted = {name: weight.grad.clone() for name, weight in model.adapter.items() if weight.grad is not None}
    assert len(wanted) == 28
    metrics = Training(model, batch, settings, ANOTHER).run(lambda *_: None)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert metrics["dropped_sequences"] > 0, "the guard had something to do"
    assert metrics["clip_fraction"] > 0
    for name, weight in model.adapter.items():
        assert weight.grad is not None
        off = ((weight.grad - wanted[name]).norm() / wanted[name].norm()).item()
        assert off < 1e-4, name


def test_what_the_engine_cannot_tell_is_computed_under_the_version_that_sampled_it(model: PolicyModel) -> None:
    """Three answers: of another version, of this one and unknown, of this one and told by the engine."""
    plain, cut = Sampling(), Sampling(0.7, 0.9, 7)
    rows = [made([1, 2, 3, 4, 5, 6, 7, 8], [(2, 4, plain), (5, 6, cut), (7, 8, plain)]), made([1, 2, 9], [(2, 3, cut)])]
    with torch.no_grad():
        expected = [naive_logprobs(model, row).tolist() for row in rows]
    told = np.array([0, 0, -0.5, -0.5, 0, 0, 0, expected[0][3]], dtype=np.float32)
    unknown = np.array([0, 0, 1, 1, 0, 1, 0, 0], dtype=np.bool_)
    versions = np.array([0, 0, 3, 3, 0, 4, 0, 4], dtype=np.int32)
    rows = [
        replace(rows[0], logprobs=told, recomputed=unknown, version=versions),
        replace(rows[1], recomputed=rows[1].trained, version=np.array([0, 0, 4], dtype=np.int32)),
    ]
    batch = Batch(tuple(rows), np.array([1, -1], dtype=np.float32))
    assert batch.recomputed_under == {3, 4}
    found = recompute(batch, model, 4, 4096)
    assert found.sequences[0].logprobs.tolist() == pytest.approx(
        [0, 0, -0.5, -0.5, 0, expected[0][2], 0, expected[0][3]]
    )
    assert found.sequences[1].logprobs.tolist() == pytest.approx([0, 0, expected[1][0]])
    assert [one.trained.tolist() for one in found.sequences] == [one.trained.tolist() for one in rows]
    # What is left is that of the other version; the model has the same weights here.
    both = recompute(found, model, 3, 4096)
    assert both.sequences[0].logprobs[2:4].tolist() == pytest.approx(expected[0][:2])
    assert both.sequences[1].logprobs.tolist() == found.sequences[1].logprobs.tolist()
    # Only what vLLM told of the parent's own tokens says whether both compute the same model.
    metrics = Training(model, both, UpdateSettings(), 4).run(lambda *_: None)
    assert (metrics["same_version_tokens"], metrics["recomputed_tokens"]) == (1, 4)


def test_a_stem_is_held_only_within_sharing(model: PolicyModel) -> None:
    sequences = batch_of(model).sequences
    parts = list(layouts.layouts(sequences, 12, tree=True, least_stem=2))
    part = next(part for part in parts if part.stem is not None)
    if model.trains_trees:
        with pytest.raises(RuntimeError, match=r"needs PolicyModel\.sharing"):
            model.logprobs(part, layouts.targets(sequences, part))


def test_a_model_whose_layers_keep_the_tree_to_themselves_is_refused(
    model: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model.trains_trees:
        sequences = batch_of(model).sequences
        part = next(layouts.layouts(sequences, 4096, tree=True))
        monkeypatch.setattr(model._model.get_base_model().config, "_attn_implementation", "sdpa")
        with pytest.raises(JobInvalid, match="do not hand on what their attention is told"):
            model.logprobs(part, layouts.targets(sequences, part))
