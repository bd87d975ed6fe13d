"""What a part of the bench measured: rounds of sessions, with an update between two."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class Round:
    """The sessions between two updates."""

    rewards: tuple[float, ...]
    """The true ones."""
    seconds: float
    """Since the beginning of the first round, when the update after this one had ended."""
    entropy: float | None
    """Nats a token, as the update after this round measured it; None: there was none."""
    update: str | None = None
    """Why the update came to nothing, in words."""

    @property
    def mean(self) -> float:
        return fmean(self.rewards)


@dataclass(frozen=True, slots=True)
class Followed:
    """What the progress figure says of a version, and what is true."""

    version: int
    effect: float
    """The figure, the mean over the scenarios."""
    reward: float
    """The mean true reward of the sessions that it answered."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One seed of one contender on one task."""

    rounds: tuple[Round, ...]
    failed: int = 0
    """Sessions that came to no end, which are left out."""
    progress: tuple[Followed, ...] = ()
    """By version, where a judge ranked."""

    @property
    def means(self) -> list[float]:
        return [one.mean for one in self.rounds]

    @property
    def rollouts(self) -> int:
        return sum(len(one.rewards) for one in self.rounds)

    @property
    def minutes(self) -> float:
        return self.rounds[-1].seconds / 60

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Curve:
        """The opposite of `document`, from parsed JSON."""
        rounds = tuple(Round(**(one | {"rewards": tuple(one["rewards"])})) for one in document["rounds"])
        return cls(rounds, document["failed"], tuple(Followed(**one) for one in document.get("progress", ())))
