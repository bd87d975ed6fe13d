"""The parent's side of the update worker: starts the child, hands it jobs, and survives its death.

Free of torch. A child that dies, by the kernel's out-of-memory killer or otherwise, costs the job at hand
and nothing else: ``run`` says why, and the next ``run`` starts a new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import trainer
from storage.folders import make_private
from trainer.errors import AlreadyRunning, UpdateFailed, WorkerClosed

Progress = Callable[[str, int, int], None]
"""Called with the stage (load, update, probe, publish, score), how much is done, and of how much."""

_PACKAGES = Path(trainer.__file__).parent.parent
_GRACE_S = 5.0
_SILENCE_S = 1800.0
_ORPHAN_S = 30.0
JOBS_OF_A_CHILD = 50
"""What libraries leak or fragment is given back then. A start takes twice as long as a small job: 4 % of the time."""


class UpdateWorker:
    """A child process that takes job folders. One job at a time; ``close`` may come from any thread."""

    def __init__(
        self,
        log: Path,
        *,
        nice: int = 5,
        silence_s: float = _SILENCE_S,
        command: list[str] | None = None,
        lock: Path | None = None,
    ) -> None:
        """Prepare a worker; its process starts with the first job.

        ``log`` takes what the child writes to stderr, and its folder is the child's working directory.
        ``nice`` lowers its priority on a machine without a GPU, so that serving stays responsive.
        A job fails when the child says nothing for ``silence_s`` seconds; it reports every micro-batch.
        ``command`` replaces the child, for tests. ``lock``: a file that the child holds as long as it lives.
        """
        self._log = log.absolute()
        self._silence_s = silence_s
        self._command = command or [sys.executable, "-m", "trainer.update", "--nice", str(nice)]
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._lines = b""
        self._jobs = 0
        """Of the present child."""
        self._busy = threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id while it lives, otherwise None."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def run(self, job_folder: Path, on_progress: Progress | None = None) -> dict[str, float]:
        """Do the job and return its metrics. Blocks; starts the child where none lives.

        Raises ``UpdateFailed`` with a reason in words: what the child said, how it died, that it was silent
        for too long, or that the worker is closed. A child whose job failed while it was trained is replaced, since
        nobody knows in what state it left model and memory; one that only refused a job stays.
        """
        with self._busy:
            process = self._alive()
            if self._closed:  # between the start and now
                process.terminate()
            try:
                _stdin(process).write(f"{job_folder.absolute()}\n".encode())
                _stdin(process).flush()
            except OSError:
                raise self._death(process) from None
            event: dict[str, Any] | None = None
            try:
                event = self._await(process, on_progress)
            finally:
                if event is None:
                    # Its answer is nobody's any more, and must not be taken for the next job's.
                    process.kill()
                    process.wait()
            self._jobs += 1
            failed, refused = event["event"] == "failed", not event.get("blames_batch", True)
            if (failed and not refused) or self._jobs >= JOBS_OF_A_CHILD:
                self._discard()
            if failed:
                raise UpdateFailed(event["reason"], blames_batch=not refused)
            metrics: dict[str, float] = event["metrics"]
            return metrics

    def close(self) -> None:
        """End the child: at the end of its input when idle, by force during a job. Idempotent."""
        self._closed = True
        if not self._busy.acquire(blocking=False):
            if self._process is not None:
                self._process.kill()
            self._busy.acquire()
        try:
            self._discard()
        finally:
            self._busy.release()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise UpdateFailed("the update worker is closed", blames_batch=False)
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._discard()
        make_private(self._log.parent)
        path = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]))
        with self._log.open("ab") as log, _held(self._lock) as inherited:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._log.parent,
                env=os.environ | {"PYTHONPATH": path},
                pass_fds=inherited,
            )
        self._lines = b""  # a dead child may have left half a line
        self._jobs = 0
        return self._process

    def _await(self, process: subprocess.Popen[bytes], on_progress: Progress | None) -> dict[str, Any]:
        """Pass progress on until the job ends, well or not."""
        while True:
            event = self._event(process)
            if event["event"] in ("done", "failed"):
                return event
            if event["event"] == "progress" and on_progress is not None:
                on_progress(event["stage"], event["done"], event["of"])

    def _event(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Wait for the child's next line."""
        deadline = time.monotonic() + self._silence_s
        output = _stdout(process)
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._lines:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    process.kill()
                    process.wait()
                    raise UpdateFailed(
                        f"the update worker said nothing for {self._silence_s:g} s and was killed; "
                        f"its log is {self._log}"
                    )
                piece = os.read(output.fileno(), 1 << 16)
                if not piece:
                    raise self._death(process)
                self._lines += piece
        line, self._lines = self._lines.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        return event

    def _death(self, process: subprocess.Popen[bytes]) -> UpdateFailed:
        """Say how the child ended."""
        try:
            code = process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if self._closed:
            return WorkerClosed()
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            return UpdateFailed(f"the update worker was killed by {name}{hint}; its log is {self._log}")
        return UpdateFailed(f"the update worker ended with exit code {code}; its log is {self._log}")

    def _discard(self) -> None:
        """End the child, if it lives, and close its pipes."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):  # what a dead child never took
            _stdin(process).close()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _stdout(process).close()


def await_orphan(lock: Path, patience_s: float = _ORPHAN_S) -> None:
    """Wait until the worker that an earlier trainer left has ended: it notices its parent's death within a second.

    Until then it may read its job and publish. Raises ``AlreadyRunning`` when it does not end.
    """
    with _opened(lock) as descriptor:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise AlreadyRunning(
                        f"an update worker that an earlier trainer left holds {lock}: end that process"
                    ) from None
                time.sleep(0.05)


@contextmanager
def _held(lock: Path | None) -> Iterator[tuple[int, ...]]:
    """The locked file's descriptor, for a child that inherits the lock with it."""
    if lock is None:
        yield ()
        return
    with _opened(lock) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield (descriptor,)


@contextmanager
def _opened(lock: Path) -> Iterator[int]:
    make_private(lock.parent)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _stdin(process: subprocess.Popen[bytes]) -> BinaryIO:
    assert process.stdin is not None
    return process.stdin  # type: ignore[return-value]


def _stdout(process: subprocess.Popen[bytes]) -> BinaryIO:
    assert process.stdout is not None
    return process.stdout  # type: ignore[return-value]
