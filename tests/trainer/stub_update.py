"""A stand-in for ``python -m trainer.update`` that publishes a manifest and nothing else.

With ``sleep`` a job takes for ever; with ``garbage`` the answer is no JSON.
"""

import json
import os
import sys
import time
from pathlib import Path


def emit(event: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def publish(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    target = Path(job["target"])
    target.mkdir(parents=True)
    manifest = {
        "run": job["run"],
        "policy": job["policy"],
        "version": job["version"],
        "parent": job["parent"]["version"],
        "base_model": job["base_model"],
        "base_fingerprint": "f",
        "sha256": {},
        "settings": job["settings"],
        "metrics": {"loss": 0.5},
        "probe": [],
    }
    (target / "manifest.json").write_text(json.dumps(manifest))


emit({"event": "ready"})
for line in sys.stdin:
    if sys.argv[1:] == ["garbage"]:
        sys.stdout.write("no JSON\n")
        sys.stdout.flush()
        continue
    if sys.argv[1:] == ["sleep"]:
        time.sleep(600)
    publish(Path(line.strip()))
    emit({"event": "done", "run": Path(line.strip()).name, "metrics": {"loss": 0.5, "pid": os.getpid()}})
