"""A stand-in for ``python -m trainer.update`` that speaks its protocol without torch.

What it does with a job stands in the job folder's ``script.json``, a list of steps, each one of:
``{"emit": {...}}``, ``{"print": "to stderr"}``, ``{"sleep": seconds}``, ``{"exit": code}``,
``{"signal": number}``. It then ends the job with ``done``, unless a step did otherwise.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def emit(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def take(folder: Path) -> None:
    for step in json.loads((folder / "script.json").read_text()):
        if "emit" in step:
            emit(step["emit"])
            if step["emit"]["event"] == "failed":
                return
        if "print" in step:
            sys.stderr.write(step["print"] + "\n")
        if "sleep" in step:
            time.sleep(step["sleep"])
        if "exit" in step:
            sys.exit(step["exit"])
        if "signal" in step:
            os.kill(os.getpid(), step["signal"])
    emit({"event": "done", "run": folder.name, "metrics": {"pid": os.getpid(), "folder": len(folder.name)}})


emit({"event": "ready"})
for line in sys.stdin:
    take(Path(line.strip()))
