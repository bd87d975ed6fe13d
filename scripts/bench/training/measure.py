"""The contenders in turns, and what they took."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.training.processes import Contender
from scripts.services import CannotStart

OURS, LIMIT = "ours", "limit"
TRL = ("trl per call", "trl per session")
SIZES = (1, 8, 48)
_CLEARLY, _AS_GOOD = 1.15, 1.05
Say = Callable[[str], None]
Order = dict[str, Any]


@dataclass(slots=True)
class Measured:
    """What one contender took for an update, one entry a round."""

    name: str
    way: str = ""
    """The way that was the best of those tried out; only for TRL"""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    first: dict[str, Any] = field(default_factory=dict)
    """What it said of its first optimizer step, the same in every round"""
    peak_mb: float = 0.0

    def seconds(self, clock: str) -> float:
        """The median of the rounds, by ``wall`` or ``cpu``."""
        return statistics.median(self.cpu if clock == "cpu" else self.wall)


def best_way(contender: tuple[str, str, Path], sizes: Sequence[int], rows: int, say: Say) -> Order:
    """Try TRL's ways out on a few micro-batches; the one with the least CPU time a trained token.

    ``contender``: its name, the model, the batch. Each size is tried with its activations kept, where they fit into the
    memory, and computed again. A size is not tried when the one below it held all ``rows``, nor when that was already
    clearly slower than the best: one that is larger still pads more.
    """
    rates: dict[tuple[int, bool], float] = {}
    name = contender[0]
    with Contender(*contender) as trl:
        for size in sizes:
            for recompute in (False, True):
                order = _order(size, recompute=recompute, pilot=True)
                rate = _rate(trl, order)
                if isinstance(rate, float):
                    rates[size, recompute] = rate
                    say(f"{name}: {_way(order)}: {1000 * rate:.2f} ms of CPU a trained token")
                else:
                    say(f"{name}: {_way(order)}: {rate}")
            of_size = [rate for way, rate in rates.items() if way[0] == size]
            if size >= rows or (of_size and min(of_size) > _CLEARLY * min(rates.values())):
                break
        trl.close()
    if not rates:
        raise CannotStart(f"{name}: no way fits into the memory that is free")
    # The smallest of those that are as good: it needs the least memory.
    size, recompute = min(way for way, rate in rates.items() if rate < _AS_GOOD * min(rates.values()))
    return _order(size, recompute=recompute, pilot=False)


def _rate(trl: Contender, order: Order) -> float | str:
    """CPU seconds a trained token, the less of two tries, of which the first one finds its memory; or why none."""
    found = []
    for _ in range(2):
        tried = trl.step(order)
        if "failed" in tried:
            return str(tried["failed"])
        found.append(float(tried["cpu"] / tried["tokens"]))
    return min(found)


def in_turns(model: str, batch: Path, ways: dict[str, Order], rounds: int, say: Say) -> dict[str, Measured]:
    """Let every contender take its first step a round, one after the other, in a process that only it has.

    None waits with its memory held while another one runs: two of them at once may not fit.
    """
    found = {name: Measured(name, _way(ways.get(name))) for name in (OURS, LIMIT, *ways)}
    for number in range(rounds):
        for name, measured in found.items():
            with Contender(name, model, batch) as contender:
                _take(measured, contender.step(ways.get(name)))
                measured.peak_mb = max(measured.peak_mb, contender.close())
            say(f"round {number + 1}: {name}: {measured.wall[-1]:.1f} s, {measured.cpu[-1]:.1f} s of CPU")
    return found


def _take(measured: Measured, found: dict[str, Any]) -> None:
    if "failed" in found:
        raise CannotStart(f"{measured.name}: {found['failed']}")
    measured.first = found
    measured.wall.append(found["wall"])
    measured.cpu.append(found["cpu"])


def _order(size: int, *, recompute: bool, pilot: bool) -> Order:
    return {"size": size, "recompute": recompute, "pilot": pilot}


def _way(order: Order | None) -> str:
    if order is None:
        return ""
    return f"batch {order['size']}" + (", checkpointing" if order["recompute"] else "")
