"""The measurement: rounds in which the contenders take turns, each with the same calls."""

from __future__ import annotations

import gc
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass, field

import uvloop

from scripts.bench.proxying.contenders import Contender, LiteLlm, Slipstream
from scripts.bench.proxying.load import Kept, Outcome, make_calls
from scripts.bench.proxying.plan import AT_ONCE, Plan
from scripts.bench.proxying.replies import Workload

_KEPT_OF_A_RUN = 40
_MEMORY_LOOKS = 20
_WARM_LOOKS = 4
"""The first fifth of the memory run is warm-up."""


@dataclass(slots=True)
class Sample:
    """One run of one contender. Times in microseconds."""

    cpu: float
    """Of all its processes for one call, until its queue was drained."""
    per_second: float
    """Calls, likewise until the queue was drained."""
    p50: float
    p99: float
    first: float
    """Median time to the first byte of a body."""
    gap_p50: float
    gap_p99: float


Key = tuple[Workload, int, str]
"""Workload, calls at once, contender."""


@dataclass(slots=True)
class Measured:
    """Everything that was measured; the samples of a key are in the order of the rounds."""

    samples: dict[Key, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    kept: list[tuple[Workload, Kept]] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    """Slipstream's memory in MB, after each part of the memory run, the first of them when it was warm."""
    memory_calls: int = 0
    faults: list[str] = field(default_factory=list)

    def _all(self, key: Key, figure: str) -> list[float]:
        return [getattr(sample, figure) for sample in self.samples[key]]

    def middle(self, key: Key, figure: str) -> float:
        return statistics.median(self._all(key, figure))

    def ratio(self, workload: Workload, figure: str, over: str) -> float:
        """Slipstream's ``figure`` over that of another, both of the same round, at `AT_ONCE`: the median round's."""
        own, other = (self._all((workload, AT_ONCE, name), figure) for name in ("slipstream", over))
        return statistics.median(a / b for a, b in zip(own, other, strict=True))

    def added(self, key: Key, figure: str) -> float:
        """What the contender adds to the direct way, in microseconds: the median of the turns' differences."""
        workload, at_once, _ = key
        own, direct = self._all(key, figure), self._all((workload, at_once, "direct"), figure)
        return statistics.median(a - b for a, b in zip(own, direct, strict=True))


class Measurement:
    def __init__(self, plan: Plan, contenders: list[Contender]) -> None:
        self._plan = plan
        self._contenders = contenders
        self.measured = Measured()

    def run(self) -> Measured:
        for contender in self._contenders:
            for workload in self._plan.calls:
                slow = isinstance(contender, LiteLlm)
                count = self._plan.warm_up // 10 if slow or workload.streams else self._plan.warm_up
                self._calls(contender, workload, count, min(count, AT_ONCE))
        for workload in self._plan.calls:
            for at_once, rounds in ((AT_ONCE, self._plan.rounds), (1, self._plan.turns)):
                for number in range(rounds):
                    turn = number % len(self._contenders)
                    for contender in self._contenders[turn:] + self._contenders[:turn]:
                        self._sample(contender, workload, at_once)
        for contender in self._contenders:
            if isinstance(contender, Slipstream):
                self._memory(contender)
        return self.measured

    def _sample(self, contender: Contender, workload: Workload, at_once: int) -> None:
        count = self._plan.count(workload, at_once=at_once, slow=isinstance(contender, LiteLlm))
        self._calls(contender, workload, at_once, at_once)  # its connections are made anew
        before = contender.cpu_seconds()
        outcome = self._calls(contender, workload, count, at_once)
        cpu = contender.cpu_seconds() - before
        sample = Sample(
            cpu=cpu / count * 1e6,
            per_second=count / outcome.wall,
            p50=_percentile(outcome.latencies, 50),
            p99=_percentile(outcome.latencies, 99),
            first=_percentile(outcome.firsts, 50),
            gap_p50=_percentile(outcome.gaps, 50),
            gap_p99=_percentile(outcome.gaps, 99),
        )
        self.measured.samples[workload, at_once, contender.name].append(sample)

    def _memory(self, slipstream: Slipstream) -> None:
        workload = next(iter(self._plan.calls))
        for look in range(_MEMORY_LOOKS):
            self._calls(slipstream, workload, self._plan.memory_calls // _MEMORY_LOOKS, AT_ONCE)
            if look + 1 >= _WARM_LOOKS:
                self.measured.rss.append(slipstream.rss_mb())
        self.measured.memory_calls = self._plan.memory_calls

    def _calls(self, contender: Contender, workload: Workload, count: int, at_once: int) -> Outcome:
        """Calls, and the wait until the contender is done with them; `Outcome.wall` is of both."""
        records = isinstance(contender, Slipstream)
        keep = set(random.sample(range(1, count + 1), min(count, _KEPT_OF_A_RUN))) if records else None
        gc.collect()
        gc.disable()
        try:
            outcome = uvloop.run(make_calls(contender.port, workload, count, at_once, contender.name, keep))
        finally:
            gc.enable()
        if isinstance(contender, Slipstream):
            contender.expected += outcome.accepted
        outcome.wall += contender.drain()
        self.measured.kept += [(workload, kept) for kept in outcome.kept]
        self.measured.faults += [f"{contender.name}, {workload.name}: {fault}" for fault in outcome.faults]
        return outcome


def _percentile(values: list[float], percent: int) -> float:
    """In microseconds; 0 where there is none."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)] * 1e6 if values else 0.0
