"""What TensorBoard and Weights & Biases are told of runs, read back from the files that they write."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage import groups, runs
from storage.states import RunState
from tests.trainer.test_training_runs import scored
from tests.trainer.workshop import METRICS, Workshop
from trainer.settings import TrackingSettings
from trainer.tracking import figures

EXPECTED: dict[int, dict[str, Any]] = {
    1: {
        **METRICS,
        "succeeded": 1.0,
        "groups/trained": 3,
        "groups/skipped": 0,
        "groups/replayed": 0,
        "spread/task": 0.75,
        "spread/other": 0.25,
    },
    2: {
        "succeeded": 0.0,
        "groups/trained": 0,
        "groups/skipped": 0,
        "groups/replayed": 0,
        "spread/task": 1.0,
        "reason": "the loss is not a number",
    },
}


def test_what_is_trained_again_is_counted_by_itself(workshop: Workshop) -> None:
    scored(workshop, [0.0, 1.0])
    workshop.training().carry_out(workshop.ask())
    scored(workshop, [0.0, 0.5])
    run = workshop.training().carry_out(workshop.ask(replay=True))
    found = figures(run, groups.rows_of_run(workshop.db, run.id))
    expected = {"groups/trained": 1, "groups/skipped": 0, "groups/replayed": 1, "spread/task": 0.5}
    assert {name: found[name] for name in expected} == expected


def train_twice(workshop: Workshop, **tracking: Any) -> None:
    """A run that succeeds, with two groups of a scenario and one of another; then, after a restart, one that fails."""
    training = workshop.training(tracking=tracking)
    scored(workshop, [0.0, 1.0])
    scored(workshop, [0.0, 0.5])
    scored(workshop, [0.25, 0.5], "other")
    assert training.carry_out(workshop.ask()).state is RunState.SUCCEEDED
    assert training.carry_out(workshop.ask()).state is RunState.SKIPPED
    assert training.notes == ()
    training.close()
    training = workshop.training(tracking=tracking)
    scored(workshop, [0.0, 1.0])
    workshop.worker.plan = ["failed"]
    assert training.carry_out(workshop.ask()).state is RunState.FAILED
    assert training.notes == ()
    training.close()


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, which begins with 7 bytes of W&B's own."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (rest := 32768 - at % 32768) < 7:  # the end of a block is too small for a header: checksum, length, kind
            at += rest
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + 7 + length > len(data):  # still being written
            return
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, the last part of one
            yield whole
            whole = b""


def test_runs_are_in_tensorboard(workshop: Workshop, tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    train_twice(workshop, tensorboard=tmp_path / "board")
    points: dict[int, dict[str, Any]] = defaultdict(dict)
    for file in (tmp_path / "board").glob("events.out.tfevents.*"):
        data, at = file.read_bytes(), 0
        while at < len(data):  # length (8 bytes), its checksum (4), the event, its checksum (4)
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16
            for value in event.summary.value:
                told = value.tensor.string_val[0].decode() if value.HasField("tensor") else value.simple_value
                points[event.step][value.tag.removesuffix("/text_summary")] = told
    assert points == EXPECTED


def recorded_in(folder: Path) -> tuple[dict[int, dict[str, Any]], set[tuple[str, str, str]]]:
    """What offline runs hold: points by step; project, name and id of each run."""
    from wandb.proto.wandb_internal_pb2 import Record

    points: dict[int, dict[str, Any]] = {}
    names = set()
    for file in folder.glob("offline-run-*/*.wandb"):
        for data in log_records(file.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("run"):
                names.add((record.run.project, record.run.display_name, record.run.run_id))
            if record.HasField("history"):
                said = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                point = {name: json.loads(value) for name, value in said.items() if not name.startswith("_")}
                points[record.history.step.num] = point
    return points, names


def test_runs_are_in_weights_and_biases(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    train_twice(workshop, wandb="agents")
    # Its own process writes the files, and may end a moment after it said so.
    deadline = time.monotonic() + 60
    while (found := recorded_in(workshop.folder / "wandb"))[0] != EXPECTED and time.monotonic() < deadline:
        time.sleep(0.1)
    points, names = found
    assert points == EXPECTED
    assert names == {("agents", "policy", runs.first(workshop.db))}, "a restart goes on with the same run"


def test_a_tracker_that_fails_costs_no_run_and_is_told(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    scored(workshop, [0.0, 1.0])
    training = workshop.training(tracking={"tensorboard": tmp_path / "file" / "below"})
    assert training.carry_out(workshop.ask()).state is RunState.SUCCEEDED
    (note,) = training.notes
    assert note.startswith("tensorboard was not told of the run: NotADirectoryError: ")


def test_a_package_that_is_not_there_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.path_importer_cache", {})
    with pytest.raises(ValidationError, match="the package wandb is not installed: "):
        TrackingSettings(wandb="agents")
