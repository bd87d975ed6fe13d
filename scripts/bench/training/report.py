"""The figures as tables and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.bench.training.measure import LIMIT, OURS, TRL, Measured

TARGETS = {
    "per_call": "at least 4",
    "per_session": "at least 1.5",
    "limit": "at least 0.8",
    "peak_memory_ratio": "at most 1",
    "tokens_per_s": "",
}
FAR = 32768


@dataclass(frozen=True, slots=True)
class Size:
    """How large the batch is."""

    sessions: int
    trained: int
    """Sampled tokens, each of them trained once"""
    unique: int
    """Distinct tokens with distinct contexts"""


def figures(found: dict[str, Measured], size: Size, clock: str = "cpu") -> dict[str, float]:
    """Ratios of the medians by ``clock``; ``tokens_per_s`` are ours, unique ones, by wall time."""
    ours = found[OURS]
    seconds = ours.seconds(clock)
    return {
        "per_call": found[TRL[0]].seconds(clock) / seconds,
        "per_session": found[TRL[1]].seconds(clock) / seconds,
        "limit": found[LIMIT].seconds(clock) / seconds,
        "peak_memory_ratio": ours.peak_mb / found[TRL[1]].peak_mb,
        "tokens_per_s": size.unique / ours.seconds("wall"),
    }


def show(console: Console, found: dict[str, Measured], size: Size) -> None:
    title = (
        f"{size.sessions} sessions, {size.unique} unique tokens, {size.trained} of them trained; medians of the rounds"
    )
    table = Table("contender", "s", "CPU s", "CPU ms a trained token", "peak MB", "gradient", title=title)
    for name, measured in found.items():
        norm = measured.first.get("grad_norm")
        table.add_row(
            f"{name}, {measured.way}" if measured.way else name,
            f"{measured.seconds('wall'):.1f}",
            f"{measured.seconds('cpu'):.1f}",
            f"{1000 * measured.seconds('cpu') / size.trained:.2f}",
            f"{measured.peak_mb:.0f}",
            "" if norm is None else f"{norm:.3f}",
        )
    console.print(table)
    ratios = Table("ratio", "by CPU time", "by wall time", "target", title="the others' time over ours")
    by_wall = figures(found, size, "wall")
    for name, value in figures(found, size).items():
        timed = name in ("per_call", "per_session", "limit")
        ratios.add_row(name, f"{value:.2f}", f"{by_wall[name]:.2f}" if timed else "", TARGETS[name])
    console.print(ratios)


def extrapolated(peaks: dict[int, float]) -> float:
    """The memory of ``FAR`` tokens on the straight line through the two longest lengths."""
    (short, low), (long, high) = sorted(peaks.items())[-2:]
    return high + (high - low) / (long - short) * (FAR - long)


def show_memory(console: Console, peaks: dict[int, float]) -> dict[str, Any]:
    """Print a table; returns what ``--json`` writes."""
    table = Table("tokens of one session", "peak MB", "more a token, KB", title="one update on one linear session")
    before: tuple[int, float] | None = None
    for length, peak in sorted(peaks.items()):
        more = "" if before is None else f"{1024 * (peak - before[1]) / (length - before[0]):.0f}"
        table.add_row(str(length), f"{peak:.0f}", more)
        before = (length, peak)
    far = extrapolated(peaks)
    table.add_row(f"{FAR} (extrapolated)", f"{far:.0f}", "")
    console.print(table)
    return {"memory_mb": {str(length): peak for length, peak in sorted(peaks.items())} | {str(FAR): far}}
