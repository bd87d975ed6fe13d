"""One process per part: started in order, restarted when it dies, stopped together.

Every child dies with its supervisor, even when that is killed (PR_SET_PDEATHSIG); its output goes to a log file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 20.0
_LONGEST_PAUSE = 30.0
_STEADY_SECONDS = 60.0


@dataclass(slots=True)
class Part:
    """A program to keep running."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restarts: int = 0
    _output: IO[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._output = self.log.open("ab")
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            # A group of its own: Ctrl-C reaches the supervisor alone, which stops the parts in order.
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),
        )

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to the whole group when it does not end in time."""
        process, self.process = self.process, None
        if process is not None:
            _signal_group(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            _signal_group(process, signal.SIGKILL)
            process.wait()
        if self._output is not None:
            self._output.close()

    def tail(self, lines: int = 15) -> str:
        """The end of the log, for a person who asks why."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Supervisor:
    """Keeps parts running until `stop`; ``say`` is told in words what happens."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._parts: list[Part] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._lock = threading.Lock()

    @property
    def parts(self) -> tuple[Part, ...]:
        with self._lock:
            return tuple(self._parts)

    def start(self, part: Part) -> None:
        with self._lock:
            part.start()
            self._parts.append(part)
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """Stop the parts, the last started first."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        for part in reversed(self._parts):
            part.stop()
        self._parts.clear()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self) -> None:
        while not self._stopped.wait(0.5):
            with self._lock:
                dead = [p for p in self._parts if p.process is not None and p.process.poll() is not None]
            for part in dead:
                self._restart(part)

    def _restart(self, part: Part) -> None:
        assert part.process is not None
        code = part.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if time.monotonic() - part.started_at > _STEADY_SECONDS:
            part.restarts = 0
        pause = min(2.0**part.restarts, _LONGEST_PAUSE)
        self._say(f"{part.name} {how}; it is started again in {pause:.0f} s (its log: {part.log})")
        # What it left of its group would hold its port.
        _signal_group(part.process, signal.SIGKILL)
        if self._stopped.wait(pause):
            return
        part.restarts += 1
        part.start()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _die_with(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
