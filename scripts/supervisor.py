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
from dataclasses import dataclass
from pathlib import Path

from storage.folders import make_private

_PR_SET_PDEATHSIG = 1
STOP_SECONDS = 40.0
"""For a part that has nothing to drain."""
_LONGEST_PAUSE = 30.0
_STEADY_SECONDS = 60.0
_WATCH_SECONDS = 0.5


@dataclass(slots=True)
class Part:
    """A program to keep running."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    log: Path
    patience: float = STOP_SECONDS
    """Seconds that it has to end after SIGTERM."""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restarts: int = 0
    restart_at: float | None = None
    """It is dead, and started again at this time."""

    def start(self) -> None:
        """Raises OSError when the program or its log cannot be opened."""
        make_private(self.log.parent)
        self.started_at = time.monotonic()
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
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
                process.wait(self.patience)
            _signal_group(process, signal.SIGKILL)
            process.wait()

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
        self._stopped, self._quiet, self._ended = threading.Event(), threading.Event(), threading.Event()
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
            self._quiet.wait()
        for part in reversed(self._parts):
            part.stop()
        self._parts.clear()
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self) -> None:
        while not self._stopped.wait(_WATCH_SECONDS):
            for part in self.parts:
                if part.restart_at is None:
                    self._look_at(part)
                elif time.monotonic() >= part.restart_at:
                    self._restart(part)
        self._quiet.set()
        # A part dies with the thread that started it: those that were started again must not die before their turn.
        self._ended.wait()

    def _look_at(self, part: Part) -> None:
        code = part.process.poll() if part.process is not None else None
        if code is None or part.process is None:
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if time.monotonic() - part.started_at > _STEADY_SECONDS:
            part.restarts = 0
        pause = min(2.0**part.restarts, _LONGEST_PAUSE)
        self._say(f"{part.name} {how}; it is started again in {pause:.0f} s (its log: {part.log})")
        # What it left of its group would hold its port.
        _signal_group(part.process, signal.SIGKILL)
        # The others are looked after meanwhile.
        part.restart_at = time.monotonic() + pause

    def _restart(self, part: Part) -> None:
        part.restarts += 1
        try:
            part.start()
        except OSError as error:
            self._say(f"{part.name} cannot be started: {error}; it is tried again in {_LONGEST_PAUSE:.0f} s")
            part.restart_at = time.monotonic() + _LONGEST_PAUSE
        else:
            part.restart_at = None


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
