"""What our logprobs and losses cost beside those of unsloth_zoo, and how far both are from float64.

Random hidden states before a head as large as the small model's, forward and backward. Each contender is a process of
its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")

import torch
from torch import Tensor

TOKENS, HIDDEN, VOCABULARY = 1024, 576, 49152
HEADS = ("ours", "zoo", "zoo float32")
LOSSES = ("ours grpo", "zoo grpo", "ours cispo", "zoo cispo")
CLIP_LOW, CLIP_HIGH, CAP = 0.2, 0.28, 5.0

Contender = Callable[[], tuple[Tensor, Tensor]]
"""Its values, and the gradient of their sum."""


def head(name: str) -> tuple[Contender, Contender]:
    """A head, and what it should give for the first tokens, in float64 from the same weights."""
    states = (torch.randn(TOKENS, HIDDEN) * 2).bfloat16().requires_grad_()
    layer = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    ids = torch.randint(VOCABULARY, (TOKENS,))
    ones = torch.ones(TOKENS)

    def run() -> tuple[Tensor, Tensor]:
        if name == "ours":
            from trainer.head import predicted

            values = predicted(states, layer, ids, ones, ones, torch.zeros(TOKENS, dtype=torch.int32))[0]
        else:
            from unsloth_zoo.fused_losses.fused_linear import fused_linear_logprobs

            weight, seen = layer.weight, states
            if name == "zoo float32":
                weight, seen = weight.float(), states.float()
            values = fused_linear_logprobs(seen, weight, ids, return_entropy=True, entropy_requires_grad=False)[0]
        (gradient,) = torch.autograd.grad(values.sum(), states)
        return values.detach(), gradient

    def expect() -> tuple[Tensor, Tensor]:
        part = slice(0, 64)
        exact = states.detach()[part].double().requires_grad_()
        values = (exact @ layer.weight.double().t()).log_softmax(-1).gather(1, ids[part, None])[:, 0]
        (gradient,) = torch.autograd.grad(values.sum(), exact)
        return values.detach(), gradient

    return run, expect


def loss(name: str) -> tuple[Contender, Contender]:
    """A loss of one row of tokens; the expected one is the formula in float64."""
    from trainer import loss as ours

    kind = name.split()[1]
    behaviour = -torch.rand(TOKENS) * 3
    logprobs = (behaviour + torch.randn(TOKENS) * 0.5).requires_grad_()
    advantages = torch.randn(1).expand(TOKENS).contiguous()

    def run() -> tuple[Tensor, Tensor]:
        if name.startswith("ours"):
            tokens = ours.Tokens(logprobs, behaviour, advantages, torch.ones(TOKENS, dtype=torch.bool))
            found = (
                ours.cispo(tokens, TOKENS, cap=CAP)
                if kind == "cispo"
                else ours.grpo(tokens, TOKENS, clip_low=CLIP_LOW, clip_high=CLIP_HIGH)
            ).loss
        else:
            from unsloth_zoo.rl_replacements import grpo_compute_loss

            row, high = logprobs[None], CAP if kind == "cispo" else CLIP_HIGH
            mask, ids = torch.ones(1, TOKENS), torch.zeros(1, TOKENS, dtype=torch.long)
            options: dict[str, Any] = {
                "loss_type": "cispo" if kind == "cispo" else "dapo",
                "num_items_in_batch": TOKENS,
            }
            options |= {"epsilon_low": CLIP_LOW, "epsilon_high": high}
            found = grpo_compute_loss(None, row, behaviour[None], None, ids, mask, 0.0, advantages[:1], **options)[0]
        (gradient,) = torch.autograd.grad(found, logprobs)
        return found.detach()[None], gradient

    def expect() -> tuple[Tensor, Tensor]:
        exact = logprobs.detach().double().requires_grad_()
        ratio, value = (exact - behaviour.double()).exp(), advantages.double()
        if kind == "cispo":
            found = -(ratio.detach().clamp(max=CAP) * value * exact).sum() / TOKENS
        else:
            found = -torch.minimum(ratio * value, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * value).sum() / TOKENS
        (gradient,) = torch.autograd.grad(found, exact)
        return found.detach()[None], gradient

    return run, expect


def measure(name: str, rounds: int) -> None:
    """Print one line of the table."""
    if name.startswith("zoo"):
        import unsloth  # noqa: F401  (it has to come before unsloth_zoo)
    torch.manual_seed(0)
    run, expect = head(name) if name in HEADS else loss(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()  # what is loaded or compiled at first
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        found = run()
    wall, cpu = (time.perf_counter() - wall) / rounds, (time.process_time() - cpu) / rounds
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    off = [float((a[: len(b)].double() - b).abs().max()) for a, b in zip(found, expect(), strict=True)]
    print(f"| {name} | {1000 * wall:.2f} | {1000 * cpu:.2f} | {peak:.0f} | {off[0]:.1e} | {off[1]:.1e} |", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="scripts/bench/head", description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--only", choices=(*HEADS, *LOSSES), help="one contender, in this process")
    options = arguments.parse_args()
    if options.only:
        measure(options.only, options.rounds)
        return
    print("| contender | ms | CPU ms | MB more at the peak | largest error | of the gradient |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    for name in (*HEADS, *LOSSES):
        command = [sys.executable, "-m", "scripts.bench.heads", "--only", name, "--rounds", str(options.rounds)]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        print([line for line in found.stdout.splitlines() if line.startswith("|")][-1], flush=True)


if __name__ == "__main__":
    main()
