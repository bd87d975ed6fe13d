"""A contender's process, from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from scripts.services import PROJECT, CannotStart


class Contender:
    """A process that has loaded its model, and takes steps when it is told to."""

    def __init__(self, name: str, model: str, batch: Path) -> None:
        """Raises `CannotStart`, with the end of what it said."""
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="slipstream-train-")
        self._log = Path(self._folder.name) / "log"
        # A thread that spins while it waits would be counted as work done.
        environment = {
            **os.environ,
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONPATH": str(PROJECT),
            "TOKENIZERS_PARALLELISM": "false",
            "UNSLOTH_DISABLE_STATISTICS": "1",
        }
        command = [sys.executable, "-m", "scripts.bench.training.contender", name, model, str(batch)]
        with self._log.open("wb") as log:
            # Unsloth writes what it compiles into the current folder.
            self._process = subprocess.Popen(
                command,
                cwd=self._folder.name,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._read()

    def step(self, order: dict[str, Any] | None = None) -> dict[str, Any]:
        """One step: ``wall`` and ``cpu`` seconds, and what the contender says of it; or ``failed``, why not."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order or {}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> float:
        """End it; returns its largest memory in MB."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        peak = float(self._read()["peak_mb"])
        self._process.wait()
        return peak

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._folder.cleanup()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
            raise CannotStart(f"{self.name} ended with {self._process.wait()}:\n{tail}")
        found: dict[str, Any] = json.loads(line)
        return found
