"""A contender in a process of its own, so that its memory is its own: ``python -m scripts.bench.training.contender``.

Arguments: the contender's name, a model folder, a batch. It answers each line of stdin (``step``, or a way of TRL's to
try out or to take) with one line of JSON, and says at its end how much memory it had at most.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BYTES_FREE_SHARE = 0.7
"""Of the memory that is free at the start: more than this is not taken, so that nothing else is ended for its lack."""
_NO_MEMORY = ("allocate memory", "could not create a primitive")
"""torch's words, and oneDNN's"""


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # libraries print
    name, model, batch = sys.argv[1:4]
    steps = _contender(name, model, Path(batch))

    def answer(found: dict[str, Any]) -> None:
        os.write(out, json.dumps(found).encode() + b"\n")

    answer({})
    _limit_memory()
    for line in sys.stdin:
        answer(_timed(steps, json.loads(line)))
    answer({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})


def _contender(name: str, model: str, path: Path) -> Callable[[dict[str, Any]], dict[str, float]]:
    import unsloth  # noqa: F401  (first: TRL asks for a GPU where triton is installed and it was not)

    from scripts.bench.training import own, peer, rows
    from storage.update_settings import UpdateSettings
    from trainer.batches import Batch

    settings = UpdateSettings()
    batch = Batch.load(path)
    if name == "score":
        scorer = own.Own(model, batch, settings)

        def score(_: dict[str, Any]) -> dict[str, float]:
            scorer.scored().save(path)
            return {}

        return score
    if name == "ours":
        ours = own.Own(model, batch, settings)
        return lambda _: ours.step()
    if name == "limit":
        limit = own.Limit(model, rows.unique(batch, settings.micro_batch_tokens), settings)
        return lambda _: limit.step()
    trl = peer.Peer(model, rows.per_call(batch) if name == "trl per call" else rows.per_session(batch), settings)

    def run(order: dict[str, Any]) -> dict[str, float]:
        way = peer.Way(order["size"], order["recompute"])
        return {"tokens": trl.pilot(way)} if order["pilot"] else trl.step(way)

    return run


def _timed(step: Callable[[dict[str, Any]], dict[str, float]], order: dict[str, Any]) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        found = step(order)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _NO_MEMORY):
            raise
        return {"failed": "more memory than is free"}
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, **found}


def _limit_memory() -> None:
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    held = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")  # data and stack
    most = held + int(pages * BYTES_FREE_SHARE)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    main()
