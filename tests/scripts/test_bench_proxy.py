"""The benchmark of the proxy, with a few calls and without the peers: real processes, real records."""

from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console

from scripts.bench.proxying import contenders as who
from scripts.bench.proxying.__main__ import measure
from scripts.bench.proxying.load import Kept, make_calls
from scripts.bench.proxying.plan import Plan
from scripts.bench.proxying.processes import Cores
from scripts.bench.proxying.replies import PLAIN, PLAIN_20K, STREAM, Workload

TINY = Plan(
    rounds=1,
    turns=1,
    calls={PLAIN: 32, PLAIN_20K: 32, STREAM: 32},
    calls_of_turn={PLAIN: 9, PLAIN_20K: 4, STREAM: 1},
    memory_calls=40,
    warm_up=40,
)


def test_a_run_measures_everything_and_finds_no_fault() -> None:
    found, faults = measure(TINY, (), Console(quiet=True))
    assert faults == []
    # Warm-up, a round and its warm connections, a turn and its warm connection, the memory.
    calls = (40 + 4 + 40) + 3 * (32 + 32) + (9 + 4 + 1 + 3) + 40
    assert (found["calls"], found["rows"]) == (calls, calls)
    assert (found.pop("cpu_ratio_router"), found.pop("throughput_ratio_litellm")) == (None, None)
    for name in ("cpu_ratio_plain", "cpu_ratio_plain_20k", "cpu_ratio_stream", "rss_mb"):
        value = found[name]
        assert value is not None
        assert value > 0, name
    assert {"p50_ratio", "p99_ratio", "rss_growth_mb"} <= found.keys()


def test_a_record_that_differs_is_found(tmp_path: Path) -> None:
    cores = Cores.of_this_process()
    upstream = who.Upstream(cores.upstream, tmp_path)
    slipstream = who.Slipstream(upstream, cores.contender, tmp_path)
    try:
        slipstream.wait()
        assert slipstream.records is not None
        kept: list[tuple[Workload, Kept]] = []
        for workload in (PLAIN, STREAM):
            outcome = uvloop.run(make_calls(slipstream.port, workload, 6, 2, "test", {2, 5}))
            assert (outcome.accepted, outcome.faults) == (6, [])
            kept += [(workload, call) for call in outcome.kept]
            slipstream.expected += 6
        slipstream.drain()
        assert len(kept) == 4
        assert slipstream.records.faults(kept) == []
        for workload, call in kept:
            for other, differing in (
                (replace(call, body=call.body + b" "), "response"),
                (replace(call, request=call.request[1:]), "request"),
                (replace(call, turn=(call.turn + 1) % 4), "response, prompt ids, sampled ids"),
                (replace(call, call_id="0" * 32), "the record is"),
            ):
                fault = f"call {other.call_id}: {differing} not as it was"
                assert slipstream.records.faults([(workload, other)]) == [fault]
        slipstream.records.close()
    finally:
        who.stop_all([slipstream], upstream)
