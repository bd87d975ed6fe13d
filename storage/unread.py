"""The journal while there is no database to take it into: it is kept as it is."""

from __future__ import annotations

from pathlib import Path

from storage import figures
from storage.figures import Figures
from storage.journal import Position


class Unread:
    """In the place of `Ingestion`, for as long as this process lives."""

    refused = 0
    caught_up = True
    warnings: tuple[str, ...] = ()

    def __init__(self, folder: Path, problem: str) -> None:
        self._folder = folder
        self.problem: str | None = problem

    def stop(self) -> None:
        pass

    def figures(self) -> Figures:
        return figures.read(self._folder, Position(0, 0))
