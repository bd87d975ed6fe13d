"""vLLM's CPU LoRA functions as they are against the plugin's, in turns, on the layers of the small model.

Reports how many times faster the plugin's are for batches of one token per call: each call under one adapter, and half
of the calls without one. Run it as ``./scripts/bench/lora_cpu [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

RANK, SLOTS, ROUNDS = 16, 6, 9
# in and out features of the seven linear layers of SmolLM2-135M.
LAYERS = ((576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576))

Operators = tuple[Callable[..., None], Callable[..., None]]


def main() -> None:
    from vllm.lora.ops.torch_ops import lora_ops as theirs

    from proxy.vllm_plugin import lora_cpu as ours

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    # The originals, bound before anything could have replaced them.
    contenders: dict[str, Operators] = {
        "vLLM's": (theirs.bgmv_shrink, theirs.bgmv_expand),
        "the plugin's": (ours.bgmv_shrink, ours.bgmv_expand),
    }
    figures: dict[str, float] = {}
    table = Table("calls at once", "batch", "vLLM's ms", "the plugin's ms", "times faster")
    for calls in (8, 48):
        for name, mixed in (("one adapter", False), ("half without", True)):
            times = measure(contenders, calls, mixed=mixed)
            ratio = times["vLLM's"] / times["the plugin's"]
            figures[f"{calls} {name}"] = ratio
            shown = [f"{1000 * times[contender]:.2f}" for contender in contenders]
            table.add_row(str(calls), name, *shown, f"{ratio:.1f}")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


def measure(contenders: dict[str, Operators], calls: int, *, mixed: bool) -> dict[str, float]:
    """Median seconds for one decoder layer's adapters, the contenders in turns."""
    torch.manual_seed(0)
    indices = torch.zeros(calls, dtype=torch.long)
    if mixed:
        indices[::2] = -1
    layers = [_layer(calls, *shape) for shape in LAYERS]
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, (shrink, expand) in contenders.items():
            began = time.perf_counter()
            for x, a, b, buffer, out in layers:
                shrink(x, a, buffer, indices, 2.0)
                expand(buffer, b, out, indices, True)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def _layer(calls: int, features_in: int, features_out: int) -> tuple[Any, ...]:
    kind = torch.bfloat16
    return (
        torch.randn(calls, features_in, dtype=kind),
        torch.randn(SLOTS, 1, RANK, features_in, dtype=kind),
        torch.randn(SLOTS, 1, features_out, RANK, dtype=kind),
        torch.zeros(calls, RANK, dtype=torch.float32),
        torch.zeros(calls, features_out, dtype=kind),
    )


if __name__ == "__main__":
    main()
