"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.bench.proxying.replies import PLAIN, PLAIN_20K, STREAM, Workload

AT_ONCE = 32
SLOW = 1 / 40
"""LiteLLM makes so many of the calls that the others make: it takes a hundred times as long for each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """In each round (calls at once) and each turn (one after another) every contender makes so many calls."""

    rounds: int
    turns: int
    calls: dict[Workload, int]
    """A round's."""
    calls_of_turn: dict[Workload, int]
    memory_calls: int
    warm_up: int
    decoded: int = 100

    def count(self, workload: Workload, *, at_once: int, slow: bool) -> int:
        count = (self.calls if at_once > 1 else self.calls_of_turn)[workload]
        return max(int(count * SLOW), at_once, 2) if slow else count


FULL = Plan(
    rounds=7,
    turns=15,
    calls={PLAIN: 3_000, PLAIN_20K: 1_500, STREAM: 192},
    calls_of_turn={PLAIN: 300, PLAIN_20K: 150, STREAM: 4},
    memory_calls=100_000,
    warm_up=1_000,
)
QUICK = Plan(
    rounds=3,
    turns=7,
    calls={PLAIN: 1_500, PLAIN_20K: 600, STREAM: 64},
    calls_of_turn={PLAIN: 200, PLAIN_20K: 100, STREAM: 2},
    memory_calls=10_000,
    warm_up=300,
)
