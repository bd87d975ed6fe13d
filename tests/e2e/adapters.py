"""Adapters for tests: random ones that visibly change what a model answers."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

RANK, ALPHA = 16, 32
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def random_adapter(model: Path, target: Path, seed: int, scale: float = 0.05) -> Path:
    """Writes a LoRA adapter for every linear layer of `model` into the folder `target`, in PEFT's format.

    Both factors are Gaussian with the standard deviation `scale`, so that one layer's change, α/r · B @ A, has
    a deviation of 2 · √16 · scale² = 0.02 an entry at the default. Measured on SmolLM2-135M: at 0.02 most greedy
    answers stay what they were, at 0.05 nearly all change and still read as words.
    Written by hand rather than by PEFT, which would have to load the model to learn the shapes.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(model / "model.safetensors", "pt") as weights:
        for name in sorted(weights.keys()):
            layer = name.removesuffix(".weight")
            if not layer.endswith(LAYERS):
                continue
            out, into = weights.get_slice(name).get_shape()
            for factor, shape in (("lora_A", (RANK, into)), ("lora_B", (out, RANK))):
                values = scale * torch.randn(*shape, generator=generator)
                tensors[f"base_model.model.{layer}.{factor}.weight"] = values.to(torch.bfloat16)
    target.mkdir(parents=True)
    save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(LAYERS),
        "inference_mode": True,
    }
    (target / "adapter_config.json").write_text(json.dumps(config, indent=2))
    return target
