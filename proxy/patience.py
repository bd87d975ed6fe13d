"""How long a client may take to send a request: one that never ends would hold a place, and a stop of the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 30.0
"""Within which a head must come whole, and between two pieces of a body."""


class Patience:
    """One timer at most, and none for a request that comes at once. ``late`` is called when it is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, late: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._late = late
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        return self._timer is not None

    def begin(self) -> None:
        """From now on, also where it waits already."""
        self._due = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._look)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._loop.time() < self._due:  # pieces came meanwhile
            self._timer = self._loop.call_at(self._due, self._look)
        else:
            self._late()
