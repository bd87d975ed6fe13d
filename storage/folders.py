"""Folders of what agents and models wrote: for this program's user alone."""

from __future__ import annotations

from pathlib import Path


def make_private(folder: Path) -> None:
    """Make ``folder``, and those above it that are missing, with the mode 0700."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises where a file is in its place
