"""The update worker: ``python -m trainer.update``, a child process that keeps the base model.

It reads the path of one job folder per line on stdin and writes one JSON object per line on stdout::

    {"event": "ready"}
    {"event": "progress", "run": ..., "stage": "load" | "update" | "probe" | "publish", "done": 3, "of": 8}
    {"event": "done", "run": ..., "metrics": {...}}
    {"event": "failed", "run": ..., "reason": "...", "blames_batch": true}

``python -m trainer.update JOB RESULT`` does the same with one job, by hand: its result folder is RESULT, and the exit
code 1 when it failed.

A job that fails is an event, and the next one is taken. At the end of stdin it exits with 0, after the jobs
it was given; when its parent dies it exits at once. Nothing else ever reaches stdout: libraries print, so
descriptor 1 is turned to stderr before they are imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Emit = Callable[[dict[str, Any]], None]


def main() -> None:
    """Run until stdin ends."""
    events = _private_stdout()
    arguments = argparse.ArgumentParser(prog="trainer.update", description=__doc__)
    arguments.add_argument("--nice", type=int, default=0, help="lower the priority on a machine without a GPU")
    arguments.add_argument("job", type=Path, nargs="?", help="a job folder to do once")
    arguments.add_argument("result", type=Path, nargs="?", help="the adapter folder that it leaves")
    options = arguments.parse_args()
    if (options.job is None) != (options.result is None):
        arguments.error("a job folder and a result folder are wanted, or none of both")
    if options.job is None:
        threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    _import_libraries(options.nice)

    from trainer.update_jobs import Worker

    def emit(event: dict[str, Any]) -> None:
        os.write(events, json.dumps(event, allow_nan=False).encode() + b"\n")

    worker = Worker(emit)
    if options.job is not None:
        sys.exit(0 if _take(worker, options.job, emit, options.result) else 1)
    emit({"event": "ready"})
    for line in sys.stdin:
        if line.strip():
            _take(worker, Path(line.strip()), emit)


def _take(worker: Any, folder: Path, emit: Emit, result: Path | None = None) -> bool:
    """Whether the job was done."""
    started = time.perf_counter()
    try:
        metrics = worker.run(folder, result)
        metrics["seconds_total"] = metrics.get("seconds_total", time.perf_counter() - started)
        event = {"event": "done", "run": worker.current, "metrics": metrics}
    except Exception as error:  # noqa: BLE001  (the edge of the process: a failed job is an event, not an end)
        traceback.print_exc()
        event = {"event": "failed", "run": worker.current or folder.name, "reason": _in_words(error)}
        event["blames_batch"] = _blames_batch(error)
        worker.forget(error)
    emit(event)
    return bool(event["event"] == "done")


def _blames_batch(error: Exception) -> bool:
    """Whether what was to be learned may be the cause, and not the job's folders or the disk."""
    from trainer.errors import JobInvalid, UpdateFailed

    if isinstance(error, UpdateFailed):
        return error.blames_batch
    return not isinstance(error, JobInvalid | OSError)


def _in_words(error: Exception) -> str:
    from trainer.errors import TrainerError

    if isinstance(error, TrainerError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _private_stdout() -> int:
    """Keep stdout for events alone; whatever is printed from now on goes to stderr."""
    private = os.dup(1)
    os.dup2(2, 1)
    return private


def _exit_with_parent(parent: int) -> None:
    """Watch for the parent's death.

    Not prctl(PR_SET_PDEATHSIG): that signal comes when the *thread* which started the child ends, and a
    scheduler starts it from a thread of a pool.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _import_libraries(nice: int) -> None:
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads that spin while they wait take the cores from vLLM and from each other: on two busy cores an
    # update took 33 to 53 s with the default and 7 to 16 s with this, for a quarter of the CPU time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    if nice and not torch.cuda.is_available():
        # Before the first computation: a thread inherits the priority of the one that starts it.
        os.nice(nice)
    import unsloth  # noqa: F401  (it has to come before transformers and peft)


if __name__ == "__main__":
    main()
