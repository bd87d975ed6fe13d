"""Whether the weights of a checkpoint are quantised, and whether they can be trained so. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.errors import Untrainable

_ADVICE = "let vLLM serve the model that is not quantised"


def in_four_bits(config: Mapping[str, Any], *, gpu: bool) -> bool:
    """Whether a checkpoint with this ``config.json`` is loaded in 4 bits: only as it says itself, never for our sake.

    ``gpu``: whether there is one to train on. Raises ``Untrainable``.
    """
    found = config.get("quantization_config")
    if not found:
        return False
    method = found.get("quant_method", "an unnamed method")
    if method != "bitsandbytes" or not (found.get("load_in_4bit") or found.get("_load_in_4bit")):
        raise Untrainable(
            f"the base model's weights are quantised ({method}), and of such ones only 4 bits of bitsandbytes can be "
            f"trained: {_ADVICE}"
        )
    if not gpu:
        raise Untrainable(
            f"the base model's weights are quantised to 4 bits, which cannot be trained on a CPU: {_ADVICE}"
        )
    return True


def require_served(fingerprint: str | None, here: str) -> None:
    """4 bits are trained only where vLLM serves the very same checkpoint, else trainer and server would differ.

    ``fingerprint``: of what vLLM serves, None where it is not known; ``here``: of the files at hand. Raises
    ``Untrainable``.
    """
    if fingerprint != here:
        raise Untrainable(
            "the base model's weights are quantised to 4 bits, and vLLM is not known to serve the very same files: "
            "bring them to the machine of the trainer's service"
        )
