"""Quantised checkpoints: trained as vLLM serves them, or refused before a run begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from storage import coordination
from storage.states import GroupState, RunState
from tests.trainer.loopback import FakeModels
from tests.trainer.test_training_runs import scored, state
from tests.trainer.workshop import Workshop
from trainer.errors import Untrainable
from trainer.policy_model import PolicyModel, Shape
from trainer.quantisation import in_four_bits, require_served

FOUR_BITS = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
EIGHT_BITS = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}}
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4}}


@pytest.mark.parametrize(
    ("config", "found"),
    [({}, False), ({"quantization_config": None}, False), (FOUR_BITS, True)],
    ids=["none", "null", "4 bits"],
)
def test_on_a_gpu_a_checkpoint_is_loaded_as_it_says(config: dict[str, Any], found: bool) -> None:
    assert in_four_bits(config, gpu=True) is found


@pytest.mark.parametrize(
    ("config", "gpu", "text"),
    [
        (FOUR_BITS, False, "quantised to 4 bits, which cannot be trained on a CPU"),
        (AWQ, True, r"quantised \(awq\), and of such ones only 4 bits of bitsandbytes can be trained"),
        (EIGHT_BITS, True, r"quantised \(bitsandbytes\), and of such ones only 4 bits"),
        ({"quantization_config": {"bits": 4}}, True, r"quantised \(an unnamed method\)"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_advice(config: dict[str, Any], gpu: bool, text: str) -> None:
    with pytest.raises(Untrainable, match=text + ".*: let vLLM serve the model that is not quantised"):
        in_four_bits(config, gpu=gpu)


def test_four_bits_are_trained_only_of_what_vllm_serves() -> None:
    require_served("same", "same")
    for other in (None, "other"):
        with pytest.raises(Untrainable, match="vLLM is not known to serve the very same files"):
            require_served(other, "same")


def _served(models: FakeModels, folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 100, **config}))
    (folder / "model.safetensors").write_bytes(b"weights")
    models.document = {"data": [{"id": "small", "root": str(folder), "parent": None}]}


def test_no_run_begins_on_a_quantised_checkpoint_and_status_says_so(
    workshop: Workshop, models: FakeModels, tmp_path: Path
) -> None:
    _served(models, tmp_path / "base", AWQ)
    group = scored(workshop, [0.0, 1.0])
    run = workshop.training().carry_out(workshop.ask())
    assert (run.state, run.version) == (RunState.FAILED, None)
    assert run.reason is not None
    assert run.reason.startswith("the base model's weights are quantised (awq)")
    assert not workshop.worker.jobs
    assert state(workshop, group) is GroupState.SCORED
    coordination.beat(workshop.db, 1.0)
    workshop.cycle().turn()  # which begins none, and says why
    told = coordination.trainer(workshop.db)
    assert told is not None
    assert told.problem == run.reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="it can be trained there")
def test_the_update_worker_refuses_it_too(models: FakeModels, tmp_path: Path) -> None:
    _served(models, tmp_path / "base", FOUR_BITS)
    with pytest.raises(Untrainable, match="cannot be trained on a CPU"):
        PolicyModel.load(Shape(str(tmp_path / "base"), 16, 32))
