"""One proxy works on a data folder at a time: a second one would take the first one's journal away.

So does one ingestion. It is a process of its own, and may outlive a proxy that was killed by moments: its lock is held
by whoever has inherited the file, a new proxy waits for it.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

from proxy.errors import BadFolder, DataInUse

FILE = ".proxy.lock"
INGESTION_FILE = ".ingestion.lock"
_LONGEST_SECONDS = 60.0
_LOOK_SECONDS = 0.02


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
        free = _is_taken(file)
    except OSError as error:
        file.close()
        raise BadFolder(
            f"the data folder {folder} lies on a file system that cannot lock files ({error.strerror}): "
            "give the proxy one on a local disk with SLIPSTREAM_DATA"
        ) from error
    if not free:
        file.close()
        raise DataInUse(
            f"another proxy works on the data folder {folder}: stop that one, "
            "or give this one a folder of its own with SLIPSTREAM_DATA"
        )
    return file


def take_ingestion(folder: Path) -> IO[str]:
    """The lock on the ingestion of a folder that `take` has locked, once that of an earlier proxy is gone.

    Blocks. Held until the file is closed everywhere: by this process, and by those that inherit it. Raises `DataInUse`
    when the earlier one does not end.
    """
    file = (folder / INGESTION_FILE).open("w")
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not _is_taken(file):
        if time.monotonic() > deadline:
            file.close()
            raise DataInUse(
                f"a process of a proxy that was killed still takes the journal of {folder} into the database, and "
                f"does not end: kill it (`fuser {folder / INGESTION_FILE}` names it)"
            )
        time.sleep(_LOOK_SECONDS)
    return file


def _is_taken(file: IO[str]) -> bool:
    """Whether this process has the lock now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
