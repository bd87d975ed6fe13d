"""The ingestion as the proxy sees it: a child process, which is started again when it dies.

In the proxy's own process it would share the interpreter with the event loop, and agents would wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import orjson

from proxy.ingesting import CANNOT_OPEN, Task
from storage.ingest import Status

_log = logging.getLogger("slipstream.ingestion")

_PACKAGES = Path(__file__).parents[1]
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0
"""Seconds from a death to the next start; each is twice the one before."""
_STEADY_SECONDS = 60.0
"""Who lived that long starts again without a long pause."""
_STOP_SECONDS = 30.0
"""What has not ended by then hangs, and is killed; that loses nothing."""


class IngestionProcess:
    """`start`, `wait`, `stop` from any thread; `status` is what the child said last, and how it died."""

    def __init__(self, task: Task, lock: int) -> None:
        """``lock``: the file of the folder's lock that the child holds on to, as long as it lives."""
        self._command = [sys.executable, "-P", "-m", "proxy.ingesting", orjson.dumps(task).decode()]
        self._inherited = (task.tail, lock)
        self._earlier = self.status = Status()
        """`_earlier`: what the children before this one had come to."""
        self._told = threading.Event()
        self._stopping = threading.Event()
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_alive, name="ingestion", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Until what an earlier proxy left is in the database, or there is a problem with that."""
        self._told.wait()

    def stop(self) -> None:
        """Let it take in what is left, within seconds; then it is gone."""
        with self._starting:
            self._stopping.set()
            process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it is dead already
                process.stdin.write(b"\n")
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive() and process is not None:
            _log.error("the ingestion does not end, and is killed; what is left is taken in at the next start")
            process.kill()
            self._thread.join()

    def _keep_alive(self) -> None:
        # A terminal's Ctrl-C and a supervisor's SIGTERM reach the child, too. It inherits that they are blocked, and
        # ends when the proxy has drained.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        pause = _SHORTEST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            how = self._live()
            if self._stopping.is_set():
                return
            if time.monotonic() - began > _STEADY_SECONDS:
                pause = _SHORTEST_PAUSE
            self._mourn(how)
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _live(self) -> str | None:
        """One child, from its start to its end: how it ended, None where it has said that itself."""
        path = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]))
        with self._starting:
            if self._stopping.is_set():
                return None
            try:
                process = self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    pass_fds=self._inherited,
                    env=os.environ | {"PYTHONPATH": path},
                )
            except OSError as error:
                return f"cannot be started ({error})"
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                self._hear(Status(**orjson.loads(line)))
        code = process.returncode
        if code == CANNOT_OPEN:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _hear(self, said: Status) -> None:
        earlier = self._earlier
        self._say(
            replace(
                said,
                caught_up=earlier.caught_up or said.caught_up,
                refused=earlier.refused + said.refused,
                # A new child finds again what lies in the segments that are left.
                lost=max(earlier.lost, said.lost),
            )
        )

    def _mourn(self, how: str | None) -> None:
        if how is not None:
            problem = f"the process that takes the journal into the database {how}; it is started again"
            _log.error(problem)
            self._say(replace(self.status, problem=problem))
        self._earlier = self.status

    def _say(self, status: Status) -> None:
        self.status = status
        if status.caught_up or status.problem is not None:
            self._told.set()
