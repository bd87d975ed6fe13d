"""What a contender's processes cost: CPU and memory of all of them, and the cores they run on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STOP_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Cores:
    """Disjoint cores for the contender, the load generator and the upstream, as far as there are enough."""

    contender: frozenset[int]
    load: frozenset[int]
    upstream: frozenset[int]

    @classmethod
    def of_this_process(cls) -> Cores:
        available = sorted(os.sched_getaffinity(0))
        load = available[-2] if len(available) > 1 else available[-1]
        upstream = available[-3] if len(available) > 2 else load
        return cls(frozenset({available[-1]}), frozenset({load}), frozenset({upstream}))


def start(
    arguments: list[str], cores: frozenset[int], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process on ``cores``, in a group of its own. Its standard output is a pipe; errors go to ``log``."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # a child inherits it
    try:
        with log.open("ab") as errors:
            return subprocess.Popen(
                arguments, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True
            )
    finally:
        os.sched_setaffinity(0, own)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and where that does not help SIGKILL, to the group that `start` made."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def family(pid: int) -> list[int]:
    """The process and all its living descendants."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """CPU that the process and its descendants, dead ones among them, have used; all threads, user and system."""
    total = 0.0
    for one in family(pid):
        # The process's CPU clock counts nanoseconds, where /proc counts ticks.
        total += time.clock_gettime((~one << 3) | 2)
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[13]) + int(fields[14])) / _TICK
    return total


def rss_mb(pid: int) -> float:
    """Resident memory of the process and its living descendants."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(pid))
    return pages * _PAGE / 2**20
