"""How far the journal is whole: said by its writer, heard by its reader in another process."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

_BYTES = 16
_OFFSET_BITS = 40
"""Of a position; the segment, counted from the first one, has the bits above. No segment has a terabyte."""


class Position(NamedTuple):
    """A place in the journal."""

    segment: int
    offset: int


class Tail:
    """Where the next record begins. Behind it may stand a record that the writer is about to cut off again.

    It lies in memory of which processes share the file: a child that inherits `file` hears what is said. It is
    one aligned store of eight bytes, so that nobody hears half of it; to say it costs no system call.
    """

    def __init__(self, file: int) -> None:
        """``file`` is the `file` of one that was begun."""
        self.file = file
        self._memory = mmap.mmap(file, _BYTES)
        self._words = memoryview(self._memory).cast("Q")

    @classmethod
    def begin(cls, segment: int) -> Tail:
        """The tail of a writer whose first segment this is."""
        file = os.memfd_create("slipstream-tail")
        os.ftruncate(file, _BYTES)
        tail = cls(file)
        tail._words[0] = segment
        return tail

    @property
    def first(self) -> int:
        """The writer's first segment: those before it are an earlier process's."""
        return self._words[0]

    @property
    def position(self) -> Position:
        said = self._words[1]
        return Position(self.first + (said >> _OFFSET_BITS), said & ((1 << _OFFSET_BITS) - 1))

    def move(self, segment: int, offset: int) -> None:
        """Whatever lies before is whole."""
        self._words[1] = (segment - self._words[0]) << _OFFSET_BITS | offset

    def close(self) -> None:
        """Once more does no harm."""
        self._words.release()
        self._memory.close()
        if self.file >= 0:
            os.close(self.file)
        self.file = -1
