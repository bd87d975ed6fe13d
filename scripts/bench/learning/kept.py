"""Parts that are finished are kept, so that a bench that was interrupted goes on where it was."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.learning.rounds import Curve


@dataclass(frozen=True, slots=True)
class Part:
    """One seed of one contender: what is run at once, or not at all."""

    contender: str
    """``ours`` or ``trl``."""
    task: str
    seed: int
    rounds: int
    lag: int = 0
    """Versions between the one that answers and the newest."""
    ranks: bool = False
    """Whether a judge ranks; else the agent gives its true reward."""
    replay: bool = False
    """Whether what was best is trained again, under exploration."""
    loss: str | None = None
    """None: the product's default."""

    @property
    def name(self) -> str:
        more = [f"lag{self.lag}"] if self.lag else []
        more += ["ranks"] if self.ranks else []
        more += ["replay"] if self.replay else []
        more += [self.loss] if self.loss else []
        return "-".join([self.contender, self.task, f"seed{self.seed}", f"{self.rounds}rounds", *more])


class Kept:
    """A folder with one file for each finished part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, part: Part) -> Curve | None:
        path = self._path(part)
        return Curve.read(json.loads(path.read_text())) if path.exists() else None

    def put(self, part: Part, curve: Curve) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        staging = self._path(part).with_suffix(".part")
        staging.write_text(json.dumps(curve.document()))
        staging.replace(self._path(part))

    def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, part: Part) -> Path:
        return self._folder / f"{part.name}.json"
