"""The peers' environments: made by uv at the first run, one each, with the versions that were tried."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_FOLDER = _ROOT / ".bench"
_LISTS = Path(__file__).parent / "peers"
_UV = Path(sys.executable).with_name("uv")


def environment(name: str) -> Path:
    """The ``bin`` folder of peer ``name``'s environment, made where it is missing or its list has changed.

    Raises `subprocess.CalledProcessError` when it cannot be made.
    """
    wanted, hashes = _LISTS / f"{name}.txt", _LISTS / "hashes.txt"
    folder = _FOLDER / name
    mark = folder / ".made-of"
    digest = hashlib.sha256(wanted.read_bytes() + hashes.read_bytes()).hexdigest()
    if not mark.exists() or mark.read_text() != digest:
        print(f"making the environment of {name} in {folder.relative_to(_ROOT)} (once)")
        python = folder / "bin" / "python"
        _uv("venv", "--clear", "--python", sys.executable, str(folder))
        # Wheels alone: nothing of a package runs while it is installed.
        _uv("pip", "install", "--only-binary", ":all:", "--constraint", str(hashes), "--python", str(python),
            "--requirement", str(wanted))  # fmt: skip
        mark.write_text(digest)
    return folder / "bin"


def _uv(*arguments: str) -> None:
    subprocess.run([str(_UV), *arguments[:1], "--quiet", *arguments[1:]], check=True)
