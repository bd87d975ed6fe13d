"""Folders of what agents and models wrote: for this program's user alone."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import Refused


def make_private(folder: Path) -> None:
    """Make ``folder``, and those above it that are missing, with the mode 0700."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises where a file is in its place


def require_usable(folder: Path) -> None:
    """Make the data folder where there is none. Raises `Refused` when it cannot be made, or not be written to."""
    try:
        make_private(folder)
        problem = "" if os.access(folder, os.W_OK | os.X_OK) else "this program's user may not write there"
    except OSError as error:
        problem = "a file is in its place" if isinstance(error, FileExistsError | NotADirectoryError) else str(error)
    if problem:
        raise Refused(
            f"the data folder {folder} cannot be used ({problem}): make it one that this program's user can write to, "
            "or choose another with SLIPSTREAM_DATA"
        )
