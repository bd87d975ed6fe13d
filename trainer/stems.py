"""The stems that a model holds: their keys, values and hidden states, and the gradients that collect there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.attention import Pair, Surroundings
from trainer.layouts import Stem

Forward = Callable[[Stem, Surroundings], Tensor]
"""Runs a stem through the model; returns its hidden states (t, H)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    stem: Stem
    made: list[Tensor]
    """Hidden states, keys and values as the stem's forward pass made them, with its graph"""
    leaves: list[Tensor]
    """The same cut off from the graph: here the gradients of all that attends to them add up"""
    layers: tuple[int, ...]

    @property
    def hidden(self) -> Tensor:
        return self.leaves[0]

    @property
    def pairs(self) -> dict[int, Pair]:
        keys, values = self.leaves[1::2], self.leaves[2::2]
        return {layer: (key, value) for layer, key, value in zip(self.layers, keys, values, strict=True)}

    def release(self) -> None:
        """Do the stem's backward pass."""
        touched = [
            (made, leaf.grad) for made, leaf in zip(self.made, self.leaves, strict=True) if leaf.grad is not None
        ]
        if touched:
            torch.autograd.backward([made for made, _ in touched], [grad for _, grad in touched])


class Stems:
    """A stack: each stem attends to those below it, and ends after all that stands on it."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._held: list[_Held] = []

    def hold(self, chain: tuple[Stem, ...]) -> list[Tensor]:
        """Have exactly these stems; returns their hidden states. What is held already is not computed again."""
        alike = 0
        while alike < min(len(chain), len(self._held)) and self._held[alike].stem is chain[alike]:
            alike += 1
        self.release(alike)
        for stem in chain[alike:]:
            self._add(stem)
        return [held.hidden for held in self._held]

    @property
    def pairs(self) -> list[dict[int, Pair]]:
        return [held.pairs for held in self._held]

    def release(self, down_to: int = 0) -> None:
        """End all stems but the lowest ``down_to``: their backward passes, where they have gradients."""
        while len(self._held) > down_to:
            self._held.pop().release()

    def _add(self, stem: Stem) -> None:
        kept: dict[int, Pair] = {}
        hidden = self._forward(stem, Surroundings(self.pairs, kept=kept))
        layers = tuple(sorted(kept))
        made = [hidden, *(tensor for layer in layers for tensor in kept[layer])]
        leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in made]
        self._held.append(_Held(stem, made, leaves, layers))
