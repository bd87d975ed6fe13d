"""The event loop and the admin API's threads record at the same time."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from proxy.recorder import Recorder
from storage.journal import Entry, JournalWriter, Kind
from storage.types import new_id


class Meeting(JournalWriter):
    """Two threads meet in it, as they may wherever `writev` gives the interpreter away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = threading.Barrier(2)
        self.ids: list[str] = []

    def append(self, *entries: Entry) -> None:
        if entries[0][2:] == (b"owed",):
            with contextlib.suppress(threading.BrokenBarrierError):
                self.gate.wait(1)
        self.ids += [entry[1] for entry in entries]
        super().append(*entries)


def test_ends_that_are_owed_are_paid_once_each_whoever_pays(tmp_path: Path) -> None:
    journal = Meeting(tmp_path)
    recorder = Recorder(journal)
    owed = [new_id() for _ in range(2)]
    for one in owed:
        recorder.owe((Kind.END, one, b"owed"))
    threads = [threading.Thread(target=recorder.append, args=((Kind.PIECE, new_id(), b""),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one for one in journal.ids if one in owed] == owed
