"""One proxy works on a data folder at a time: a second one would take the first one's journal away."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from proxy.errors import BadFolder, DataInUse

FILE = ".proxy.lock"


def take(folder: Path) -> IO[str]:
    """The lock on a data folder, held until the file is closed or the process ends. Raises `DataInUse`, `BadFolder`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (folder / FILE).open("w")
    except OSError as error:
        raise BadFolder(
            f"the data folder {folder} cannot be used ({error.strerror}): "
            "give the proxy one that it may write to with SLIPSTREAM_DATA"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise DataInUse(
            f"another proxy works on the data folder {folder}: stop that one, "
            "or give this one a folder of its own with SLIPSTREAM_DATA"
        ) from None
    return file
