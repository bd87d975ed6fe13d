"""The figures as a table and as JSON."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from scripts.bench.proxying.measure import Measured
from scripts.bench.proxying.plan import AT_ONCE
from scripts.bench.proxying.replies import PLAIN, PLAIN_20K, STREAM, Workload

TARGETS = {
    "cpu_ratio_plain": "at most 1.6",
    "cpu_ratio_plain_20k": "at most 1.6",
    "cpu_ratio_stream": "at most 1.6",
    "cpu_ratio_router": "at most 3.2",
    "throughput_ratio_litellm": "at least 50",
    "p50_ratio": "at most 1.5",
    "p99_ratio": "at most 2",
    "rss_mb": "",
    "rss_growth_mb": "flat",
    "calls": "",
    "rows": "as many as calls",
}


def figures(measured: Measured, calls: int, rows: int) -> dict[str, float | int | None]:
    """What ``--json`` writes; None for a ratio to a contender that did not take part."""
    names = {name for _, _, name in measured.samples}

    def ratio(workload: Workload, figure: str, over: str) -> float | None:
        return measured.ratio(workload, figure, over) if over in names else None

    def added(figure: str) -> float | None:
        own, bare = (measured.added((PLAIN, 1, name), figure) for name in ("slipstream", "bare"))
        return own / bare if bare > 0 else None  # a bare one that is faster than direct measured noise alone

    return {
        "cpu_ratio_plain": ratio(PLAIN, "cpu", "bare"),
        "cpu_ratio_plain_20k": ratio(PLAIN_20K, "cpu", "bare"),
        "cpu_ratio_stream": ratio(STREAM, "cpu", "bare"),
        "cpu_ratio_router": ratio(PLAIN, "cpu", "vllm-router"),
        "throughput_ratio_litellm": ratio(PLAIN, "per_second", "litellm"),
        "p50_ratio": added("p50"),
        "p99_ratio": added("p99"),
        "rss_mb": measured.rss[-1],
        "rss_growth_mb": measured.rss[-1] - measured.rss[0],
        "calls": calls,
        "rows": rows,
    }


def show(console: Console, measured: Measured, found: dict[str, float | int | None]) -> None:
    console.print(_contenders(measured))
    console.print(_streams(measured))
    table = Table("ratio", "measured", "target", title="Slipstream against the others, of the same rounds")
    for name, value in found.items():
        table.add_row(name, _text(value), TARGETS[name])
    console.print(table)


def _contenders(measured: Measured) -> Table:
    table = Table(
        "calls", "at once", "contender", "CPU µs a call", "calls/s", "p50 added µs", "p99 added µs",
        title="medians of the rounds; CPU and calls/s until the queue is drained; direct: times, not added",
    )  # fmt: skip
    for workload, at_once, name in sorted(measured.samples, key=lambda key: (key[0].name, key[1])):
        key = (workload, at_once, name)
        direct = name == "direct"
        times = [(measured.middle if direct else measured.added)(key, figure) for figure in ("p50", "p99")]
        cpu = "" if direct else f"{measured.middle(key, 'cpu'):.0f}"
        speed = f"{measured.middle(key, 'per_second'):.0f}"
        table.add_row(workload.name, str(at_once), name, cpu, speed, *(f"{value:.0f}" for value in times))
    return table


def _streams(measured: Measured) -> Table:
    table = Table(
        "at once", "contender", "to first token µs", "gap p50 µs", "gap p99 µs",
        title="streams: time added to the first token and to the gaps between frames; direct: times, not added",
    )  # fmt: skip
    for at_once in (1, AT_ONCE):
        for workload, calls, name in measured.samples:
            if workload is STREAM and calls == at_once:
                value = measured.middle if name == "direct" else measured.added
                times = [value((workload, calls, name), figure) for figure in ("first", "gap_p50", "gap_p99")]
                table.add_row(str(at_once), name, *(f"{time:.0f}" for time in times))
    return table


def _text(value: float | int | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
