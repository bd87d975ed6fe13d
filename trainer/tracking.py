"""Runs as TensorBoard and Weights & Biases show them, where the settings name these.

One point for each run that took groups, at its version's number: its metrics, how many groups it trained and skipped,
and for each scenario the mean spread (best reward less worst) of its groups. A failed run has no metrics; its reason is
told. A tracker that fails costs no run.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from storage import groups, runs
from storage.database import Database
from storage.states import GroupState, RunState
from storage.types import Run
from trainer.settings import TrainerSettings

_log = logging.getLogger("slipstream.trainer")

_PATIENCE_SECONDS = 30.0
"""For Weights & Biases to answer when its run begins; nothing is trained meanwhile."""


class Tracker(Protocol):
    def tell(self, run: Run, figures: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """An event file in a folder, named by time and first run: by time alone, two of one second would be one."""

    def __init__(self, folder: Path, first: Run) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), filename_suffix=f".{first.id}")

    def tell(self, run: Run, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, run.version, run.ended_at)
        if run.reason:
            self._writer.add_text("reason", run.reason, run.version, run.ended_at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One W&B run for an installation, which a restart goes on with: its id is that of the first run on record."""

    def __init__(self, project: str, policy: str, folder: Path, ident: str) -> None:
        import wandb

        quiet = wandb.Settings(console="off", disable_git=True, silent=True, init_timeout=_PATIENCE_SECONDS)
        self._run = wandb.init(project=project, name=policy, id=ident, resume="allow", dir=folder, settings=quiet)

    def tell(self, run: Run, figures: dict[str, float]) -> None:
        reason = {"reason": run.reason} if run.reason else {}
        self._run.log({**figures, **reason}, step=run.version, commit=True)

    def close(self) -> None:
        self._run.finish()


class Tracking:
    """Tells each run to the trackers of the settings; they are reached when the first run has ended."""

    def __init__(self, db: Database, settings: TrainerSettings) -> None:
        self._db = db
        self._settings = settings
        self._trackers: dict[str, Tracker] = {}

    def tell(self, run: Run) -> list[str]:
        """Tell an ended run. Returns what could not be told, in words."""
        if run.version is None:
            return []
        found, problems = figures(run, groups.rows_of_run(self._db, run.id)), []
        for name in ("tensorboard", "wandb"):
            if getattr(self._settings.tracking, name) is None:
                continue
            try:
                if name not in self._trackers:
                    self._trackers[name] = self._reach(name, run)
                self._trackers[name].tell(run, found)
            except Exception as error:  # noqa: BLE001 - whatever a tracker's library raises: said, and the run stays
                _log.exception("run %s could not be told to %s", run.id, name)
                problems.append(f"{name} was not told of the run: {type(error).__name__}: {error}")
        return problems

    def close(self) -> None:
        for tracker in self._trackers.values():
            tracker.close()
        self._trackers.clear()

    def _reach(self, name: str, run: Run) -> Tracker:
        wanted, settings = self._settings.tracking, self._settings
        if name == "tensorboard":
            assert wanted.tensorboard is not None
            return TensorBoard(wanted.tensorboard, run)
        assert wanted.wandb is not None
        return WeightsAndBiases(wanted.wandb, settings.policy, settings.data, runs.first(self._db))


def figures(run: Run, taken: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers of a run and of its groups (rows as `groups.rows_of_run` gives them)."""
    spreads: dict[str, list[float]] = defaultdict(list)
    new = [row for row in taken if not row["replayed"]]
    for row in new:
        if row["spread"] is not None:
            spreads[row["scenario"]].append(row["spread"])
    states = [row["state"] for row in new]
    return {
        **{name: value for name, value in run.metrics.items() if isinstance(value, int | float)},
        "succeeded": float(run.state is RunState.SUCCEEDED),
        "groups/trained": states.count(GroupState.TRAINED),
        "groups/skipped": states.count(GroupState.SKIPPED),
        "groups/replayed": len(taken) - len(new),
        **{f"spread/{scenario}": fmean(values) for scenario, values in spreads.items()},
    }
