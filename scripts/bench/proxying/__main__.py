"""What the proxy costs: Slipstream, recording everything, against the direct way, a bare pass-through and two peers.

One run, in turns, each contender on a core of its own beside the load generator and an upstream that answers with the
plugin's capture. Run it as ``./scripts/bench/proxy [--quick] [--without-peers] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console

from scripts.bench.proxying import contenders as who
from scripts.bench.proxying import peers, report
from scripts.bench.proxying.measure import Measurement
from scripts.bench.proxying.plan import FULL, QUICK, Plan
from scripts.bench.proxying.processes import Cores

PEERS: tuple[type[who.Server], ...] = (who.VllmRouter, who.LiteLlm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--quick", action="store_true", help="fewer calls: below 3 minutes")
    parser.add_argument("--without-peers", action="store_true", help="leave out vllm-router and LiteLLM")
    arguments = parser.parse_args()
    chosen = () if arguments.without_peers else PEERS
    for peer in chosen:
        peers.environment(peer.name)  # before anything is measured
    found, faults = measure(QUICK if arguments.quick else FULL, chosen, Console())
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    for fault, times in Counter(faults).most_common(20):
        print(f"fault ({times} times): {fault}", file=sys.stderr)
    sys.exit(bool(faults))


def measure(
    plan: Plan, chosen: tuple[type[who.Server], ...], console: Console
) -> tuple[dict[str, float | int | None], list[str]]:
    """The figures, and what went wrong: calls that failed, records that are missing or differ."""
    cores = Cores.of_this_process()
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.load)
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as name:
        folder = Path(name)
        upstream = who.Upstream(cores.upstream, folder)
        slipstream = who.Slipstream(upstream, cores.contender, folder)
        servers = [who.Bare(upstream, cores.contender, folder), slipstream]
        servers += [peer(upstream, cores.contender, folder) for peer in chosen]
        try:
            for server in servers:
                server.wait()
            measured = Measurement(plan, [who.Contender(upstream), *servers]).run()
            assert slipstream.records is not None
            sampled = random.sample(measured.kept, min(plan.decoded, len(measured.kept)))
            faults = measured.faults + slipstream.records.faults(sampled)
            rows = slipstream.records.rows()
            slipstream.records.close()
        finally:
            who.stop_all(servers, upstream)
            os.sched_setaffinity(0, own)
    found = report.figures(measured, slipstream.expected, rows)
    report.show(console, measured, found)
    console.print(f"memory over {measured.memory_calls} calls; {len(sampled)} records decoded and compared")
    if rows != slipstream.expected:
        faults.append(f"{slipstream.expected} calls were accepted and {rows} are recorded")
    return found, faults


if __name__ == "__main__":
    main()
