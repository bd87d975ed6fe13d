"""The model under training: a resident base model with one LoRA adapter, as Unsloth loads it.

The base stays in bfloat16 and frozen; the adapter's weights are float32, on all linear layers. Logits are
computed only where a trained token is predicted, a slice of rows at a time (``trainer.head``), so that
[tokens, vocabulary] is never held for a whole batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer import adapted, attention
from trainer.attention import Surroundings
from trainer.errors import JobInvalid
from trainer.fingerprints import base_fingerprint
from trainer.head import predicted
from trainer.layouts import Ints, Layout, Stem, Targets
from trainer.quantisation import in_four_bits, require_served
from trainer.stems import Stems

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_CHECKPOINT_ABOVE = 4096
# Models that do something to the logits after the head. Their logprobs would be wrong here.
_UNSUPPORTED = {"final_logit_softcapping": None, "logit_scale": None, "logits_scaling": 1}


@dataclass(frozen=True, slots=True)
class Shape:
    """What cannot change without loading the model anew."""

    base_model: str
    rank: int
    alpha: int


class PolicyModel:
    """A base model and its one adapter."""

    @classmethod
    def load(cls, shape: Shape, served: str | None = None) -> PolicyModel:
        """Load the base in bfloat16 onto the GPU where there is one. Raises ``JobInvalid``.

        A checkpoint that is quantised to 4 bits stays so, where its fingerprint is ``served``, that of what vLLM has.
        It takes a few seconds, importing Unsloth about fifteen.
        """
        folder = model_folder(shape.base_model)
        config = json.loads((folder / "config.json").read_text())
        for name, harmless in _UNSUPPORTED.items():
            if config.get(name, harmless) not in (None, harmless):
                raise JobInvalid(f"{shape.base_model} sets {name}, which the update worker does not support")
        four_bit = in_four_bits(config, gpu=torch.cuda.is_available())
        if four_bit:
            require_served(served, base_fingerprint(folder))
        length = int(config.get("max_position_embeddings", 4096))
        from unsloth import FastLanguageModel

        base, _ = FastLanguageModel.from_pretrained(
            str(folder), max_seq_length=length, dtype=torch.bfloat16, load_in_4bit=four_bit
        )
        model = FastLanguageModel.get_peft_model(
            base,
            r=shape.rank,
            lora_alpha=shape.alpha,
            lora_dropout=0,
            bias="none",
            target_modules=list(LINEAR_LAYERS),
            use_gradient_checkpointing="unsloth" if torch.cuda.is_available() else False,
            max_seq_length=length,
        )
        return cls(model, shape, folder)

    def __init__(self, model: Any, shape: Shape, folder: Path) -> None:
        """``model``: a peft model of a causal language model, whose files lie in ``folder``."""
        self._model = model
        self.shape = shape
        self.folder = folder
        self._model.train()  # gradient checkpointing asks for it; there is no dropout
        causal = self._model.get_base_model()
        self._backbone: Any = getattr(causal, causal.base_model_prefix)
        self._head: Any = self._model.get_output_embeddings()
        self.device: torch.device = self._head.weight.device
        self.trains_trees = self.device.type == "cpu" and attention.supports(causal.config)
        """True where the attention takes a prefix tree and its stems (``trainer.layouts.shared``)."""
        if self.device.type == "cpu":
            adapted.install(model)  # Unsloth has kernels for it on a GPU
        if self.trains_trees:
            attention.install(causal)
        self._stems: dict[tuple[bool, bool], Stems] | None = None
        """By the pass, with or without adapter and gradient; None outside of ``sharing``"""
        # The name in the file that peft and vLLM read, without peft's name of the adapter in it.
        self.adapter: dict[str, Tensor] = {
            name.replace(".default.", "."): weight
            for name, weight in self._model.named_parameters()
            if weight.requires_grad
        }

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Let the layouts that follow one another share their stems: each goes through the model once.

        Its backward pass, which adds to the gradients of the adapter, is done when no layout needs it any more, at the
        latest at the end. Within, the weights must not change.
        """
        self._stems = {}
        try:
            yield
            for stems in self._stems.values():
                stems.release()
        finally:
            self._stems = None

    def logprobs(self, layout: Layout, targets: Targets, *, base: bool = False) -> tuple[Tensor, Tensor]:
        """Return log π (T,) of the layout's trained tokens and the entropy (T,) where they were sampled.

        With gradient unless it is switched off around the call. ``base``: with the adapter disabled. A layout with a
        stem is taken only within ``sharing``.
        """
        with self._model.disable_adapter() if base else nullcontext(), self._precision():
            hidden = self._with_stem(layout, base)  # (tokens of the stem and B × L, H)
        states = hidden[self._tensor(targets.places)]  # (M, H)
        columns = [self._tensor(values) for values in (targets.ids, targets.temperature, targets.top_p, targets.top_k)]
        logprobs, entropy = predicted(states, self._head, *columns)
        inverse = self._tensor(targets.inverse)
        return logprobs[inverse], entropy[inverse]

    def reset_adapter(self, seed: int) -> None:
        """Begin anew: A as peft initialises it, from ``seed``; B = 0, so that the model is its base."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.adapter.items():
                if ".lora_B." in name:
                    weight.zero_()
                    continue
                fresh = torch.empty(weight.shape)
                torch.nn.init.kaiming_uniform_(fresh, a=math.sqrt(5), generator=generator)
                weight.copy_(fresh)

    def load_adapter(self, folder: Path, seed: int) -> None:
        """Take the weights of an adapter folder. Layers that it lacks begin anew, with B = 0.

        Raises ``JobInvalid`` when its rank, alpha, kind or names do not fit.
        """
        try:
            config = json.loads((folder / ADAPTER_CONFIG).read_text())
            weights = load_file(folder / ADAPTER_WEIGHTS)
        except (OSError, ValueError, SafetensorError) as error:
            raise JobInvalid(f"the parent adapter {folder} cannot be read: {error}") from error
        expected = {
            "r": self.shape.rank,
            "lora_alpha": self.shape.alpha,
            "use_dora": False,
            "use_rslora": False,
            "bias": "none",
        }
        wrong = {name: config[name] for name in expected if config.get(name, expected[name]) != expected[name]}
        if wrong:
            raise JobInvalid(f"the parent adapter {folder} has {wrong}, the settings ask for {expected}")
        unknown = sorted(
            name
            for name, weight in weights.items()
            if name not in self.adapter or self.adapter[name].shape != weight.shape
        )
        if unknown:
            raise JobInvalid(
                f"the parent adapter {folder} has {len(unknown)} tensors that {self.shape.base_model} "
                f"does not have in this shape, the first is {unknown[0]}"
            )
        self.reset_adapter(seed)
        with torch.no_grad():
            for name, weight in weights.items():
                self.adapter[name].copy_(weight)

    def save_adapter(self, folder: Path) -> None:
        """Write the two files that peft and vLLM load; float32, since the next update starts from them."""
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in self.adapter.items()},
            folder / ADAPTER_WEIGHTS,
            metadata={"format": "pt"},
        )
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.shape.base_model,
            "r": self.shape.rank,
            "lora_alpha": self.shape.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": list(LINEAR_LAYERS),
            "inference_mode": True,
        }
        (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2))

    def _with_stem(self, layout: Layout, base: bool) -> Tensor:
        around, below = Surroundings(), []
        if layout.stem is not None:
            if self._stems is None:
                raise RuntimeError("a layout with a stem needs PolicyModel.sharing() around its passes")
            held = self._stems.setdefault((base, torch.is_grad_enabled()), Stems(self._stem))
            below = held.hold(layout.chain)
            around.stems = held.pairs
        if layout.mask is not None:
            around.mask = attention.additive(self._tensor(layout.mask), self._head.weight.dtype)
        hidden = self._hidden(layout.ids, layout.positions, around)
        return torch.cat([*below, hidden]) if below else hidden

    def _stem(self, stem: Stem, around: Surroundings) -> Tensor:
        positions = np.arange(stem.start, stem.start + len(stem.ids))
        return self._hidden(stem.ids[None], positions[None], around)

    def _hidden(self, ids: Ints, positions: Ints, around: Surroundings) -> Tensor:
        """(B × L, H) of rows (B, L)."""
        large = ids.size > _CHECKPOINT_ABOVE and self.device.type == "cpu" and torch.is_grad_enabled()
        if large:
            self._model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            hidden: Tensor = self._backbone(
                input_ids=self._tensor(ids),
                position_ids=self._tensor(positions),
                use_cache=False,
                **({"surroundings": around} if self.trains_trees else {}),
            ).last_hidden_state
        finally:
            if large:
                self._model.gradient_checkpointing_disable()
        if self.trains_trees and not around.reached:
            raise JobInvalid(
                f"the layers of {self.shape.base_model} do not hand on what their attention is told: this transformers "
                "model cannot be trained on a CPU"
            )
        return hidden.reshape(-1, hidden.shape[-1])

    def _precision(self) -> AbstractContextManager[Any]:
        if self.device.type == "cpu":
            return nullcontext()  # measured: autocast is no faster here
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device)


def model_folder(base_model: str) -> Path:
    """Return the folder of a model: the path itself, or the hub's files in the local cache.

    Unsloth is given a folder, since for a hub name it may choose a mirror of its own, and trainer and server would
    differ.
    """
    if Path(base_model).is_dir():
        return Path(base_model)
    if Path(base_model).is_absolute():
        raise JobInvalid(f"there is no model folder {base_model}")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(base_model, allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja"]))
