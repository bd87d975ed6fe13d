"""The ingestion's process: ``python -m proxy.ingesting TASK``, a child of the proxy (`proxy/ingestion.py`).

On standard output it says how it fares, one line of JSON whenever that changes. A byte on standard input asks it to
take in what is left and to end. The end of the input says that the proxy is gone: then it ends at once, wherever it is,
since the position in the journal is written in the transaction that takes records in.

What it imports it pays for at every start: no framework, no settings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from proxy.dialects import read_call
from storage.database import DatabaseError
from storage.errors import StorageError
from storage.ingest import Ingestion, Status
from storage.retention import Keep
from storage.tail import Tail

LOG_FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"
CANNOT_OPEN = 3
"""The exit code when the database cannot be opened; what was said last tells why."""

_NICE = 10
"""Agents' calls come first. Beside a busy process it still gets a tenth of a core; with 19, which delays calls as
little, it would be a seventieth, and the backlog would grow."""


@dataclass(frozen=True, slots=True)
class Task:
    folder: str
    """The data folder."""
    tail: int
    """The file of the `Tail`, inherited."""
    durable: bool
    days: float | None
    """See `Keep`; so the next."""
    gigabytes: float | None


def main() -> None:
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    task = Task(**orjson.loads(sys.argv[1]))
    stop = threading.Event()
    threading.Thread(target=_listen, args=(stop,), daemon=True).start()
    report = _reporter()
    keep = Keep(task.days, task.gigabytes)
    try:
        ingestion = Ingestion(Path(task.folder), Tail(task.tail), read_call, keep, durable=task.durable)
    except (StorageError, DatabaseError) as error:
        report(Status(problem=str(error)))
        sys.exit(CANNOT_OPEN)
    ingestion.run(stop, report)
    ingestion.close()


def _listen(stop: threading.Event) -> None:
    # Not `sys.stdin`, whose lock a thread must not hold when the interpreter ends.
    while os.read(0, 1):
        stop.set()
    os._exit(1)


def _reporter() -> Callable[[Status], None]:
    said = Status()

    def report(status: Status) -> None:
        nonlocal said
        if status == said:
            return
        if status.caught_up and not said.caught_up:
            os.nice(_NICE)  # not before: agents wait for it
        said = status
        with contextlib.suppress(BrokenPipeError):  # the proxy is gone, as `_listen` hears
            os.write(1, orjson.dumps(status) + b"\n")

    return report


if __name__ == "__main__":
    main()
