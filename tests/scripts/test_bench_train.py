"""What the bench of training feeds its contenders with, and what it makes of their times; the runs need a model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.console import Console

from scripts.bench.training import measure, report, rows
from scripts.bench.training.measure import LIMIT, OURS, TRL, Measured
from scripts.bench.training.sessions import plain
from trainer.batches import Batch

# Two sessions of two turns that begin with the same prompt: 1 2, then an answer, a result, an answer.
FIRST = [1, 2, 10, 11, 3, 12]
SECOND = [1, 2, 20, 4, 21, 22]
FIRST_TRAINED = [False, False, True, True, False, True]
SECOND_TRAINED = [False, False, True, False, True, True]


@pytest.fixture
def batch() -> Batch:
    pair = (plain(FIRST, FIRST_TRAINED), plain(SECOND, SECOND_TRAINED))
    return Batch(pair, np.array([0.5, -0.5], dtype=np.float32))


def shown(found: list[rows.Row]) -> list[tuple[list[int], int, list[int]]]:
    return [(row.ids.tolist(), row.begin, np.flatnonzero(row.trained).tolist()) for row in found]


def test_a_row_a_call_is_its_whole_prompt_and_its_answer(batch: Batch) -> None:
    found = rows.per_call(batch)
    assert shown(found) == [
        ([1, 2, 10, 11], 2, [2, 3]),
        ([1, 2, 10, 11, 3, 12], 5, [5]),
        ([1, 2, 20], 2, [2]),
        ([1, 2, 20, 4, 21, 22], 4, [4, 5]),
    ]
    assert [row.advantage for row in found] == [0.5, 0.5, -0.5, -0.5]


def test_a_row_a_session_has_everything_after_its_first_prompt_as_completion(batch: Batch) -> None:
    assert shown(rows.per_session(batch)) == [(FIRST, 2, [2, 3, 5]), (SECOND, 2, [2, 4, 5])]


def test_the_limit_goes_over_every_distinct_token_once(batch: Batch) -> None:
    assert shown(rows.unique(batch, 7)) == [([*FIRST, 20], 0, [2, 3, 5, 6]), ([4, 21, 22], 0, [1, 2])]


def test_micro_batches_hold_rows_of_like_length(batch: Batch) -> None:
    parts = rows.micro_batches(rows.per_call(batch), 2)
    assert [[len(row) for row in part] for part in parts] == [[3, 4], [6, 6]]


@pytest.mark.parametrize(
    ("size", "chosen"),
    [(1, [1, 4, 7, 10, 13, 16, 19, 22]), (8, [1]), (24, [0])],
)
def test_a_pilot_takes_few_micro_batches_evenly_spread(size: int, chosen: list[int]) -> None:
    row = rows.per_session(Batch((plain([1, 2], [False, True]),), np.ones(1, dtype=np.float32)))[0]
    parts = [[row] * size for _ in range(24 // size)]
    found = rows.sample(parts, 8)
    assert [next(at for at, part in enumerate(parts) if part is one) for one in found] == chosen


def test_ratios_are_of_the_medians_and_memory_is_over_that_of_a_row_a_session() -> None:
    def of(name: str, cpu: list[float], peak: float) -> Measured:
        return Measured(name, wall=[2 * value for value in cpu], cpu=cpu, peak_mb=peak)

    found = {
        OURS: of(OURS, [4.0, 2.0, 3.0], 1500),
        LIMIT: of(LIMIT, [3.0], 1),
        TRL[0]: of(TRL[0], [15.0], 9000),
        TRL[1]: of(TRL[1], [6.0], 3000),
    }
    size = report.Size(sessions=8, trained=300, unique=600)
    assert report.figures(found, size) == {
        "per_call": 5.0,
        "per_session": 2.0,
        "limit": 1.0,
        "peak_memory_ratio": 0.5,
        "tokens_per_s": 100.0,
    }
    text = io.StringIO()
    report.show(Console(file=text, width=120), found, size)
    assert "at least 1.5" in text.getvalue()


def test_memory_is_drawn_out_from_the_two_longest_sessions() -> None:
    assert report.extrapolated({2048: 5000.0, 4096: 1000.0, 8192: 2000.0}) == 2000 + 6 * 1000


class Trl:
    """A contender that takes what it is told for each way, in CPU seconds of ten tokens; None: too much memory."""

    costs: ClassVar[dict[tuple[int, bool], float | None]] = {}
    tried: ClassVar[list[tuple[int, bool]]] = []

    def __init__(self, *_: Any) -> None:
        self.tried.clear()

    def __enter__(self) -> Trl:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self, order: dict[str, Any]) -> dict[str, Any]:
        assert order["pilot"]
        way = (order["size"], order["recompute"])
        slow = 2 if way not in self.tried else 1  # the first try finds its memory
        self.tried.append(way)
        cost = self.costs[way]
        return {"failed": "more memory than is free"} if cost is None else {"cpu": slow * cost, "tokens": 10}

    def close(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("costs", "rows", "best", "sizes"),
    [
        ([5, 6, 4, 7, 3, 8], 64, (48, False), [1, 8, 48]),
        ([5, 6, 4, 7, 3, 8], 8, (8, False), [1, 8]),
        ([4.1, 6, 4, 7, 4, 8], 64, (1, False), [1, 8, 48]),
        ([5, 6, 4, 7, None, 3], 64, (48, True), [1, 8, 48]),
        ([5, 4, 9, 8, 1, 1], 64, (1, True), [1, 8]),
        ([5, 4, None, None, 9, 8], 64, (1, True), [1, 8, 48]),
    ],
)
def test_trl_is_taken_at_the_best_of_its_ways(
    costs: list[float | None], rows: int, best: tuple[int, bool], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = [(size, recompute) for size in (1, 8, 48) for recompute in (False, True)]
    monkeypatch.setattr(Trl, "costs", dict(zip(ways, costs, strict=True)))
    monkeypatch.setattr(measure, "Contender", Trl)
    said: list[str] = []
    found = measure.best_way(("trl per call", "model", Path("batch")), measure.SIZES, rows, said.append)
    assert (found["size"], found["recompute"], found["pilot"]) == (*best, False)
    assert list(dict.fromkeys(size for size, _ in Trl.tried)) == sizes
    assert len(said) == 2 * len(sizes)


class Alone(Trl):
    """A contender of which no two may live at once."""

    alive: ClassVar[list[str]] = []
    order: ClassVar[list[tuple[str, dict[str, Any] | None]]] = []

    def __init__(self, name: str, *_: Any) -> None:
        self.name = name

    def __enter__(self) -> Alone:
        assert not self.alive
        self.alive.append(self.name)
        return self

    def __exit__(self, *_: object) -> None:
        self.alive.remove(self.name)

    def step(self, order: dict[str, Any] | None = None) -> dict[str, Any]:
        self.order.append((self.name, order))
        return {"wall": 3.0, "cpu": 2.0 + len(self.order), "grad_norm": 0.5}

    def close(self) -> float:
        return 100.0 - len(self.order)


def test_contenders_take_turns_and_none_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "Contender", Alone)
    Alone.order.clear()
    way = {"size": 8, "recompute": True, "pilot": False}
    found = measure.in_turns("model", Path("batch"), dict.fromkeys(TRL, way), 2, lambda _: None)
    assert Alone.order == [(OURS, None), (LIMIT, None), (TRL[0], way), (TRL[1], way)] * 2
    assert [measured.way for measured in found.values()] == ["", "", *["batch 8, checkpointing"] * 2]
    assert (found[OURS].cpu, found[OURS].peak_mb, found[OURS].first["grad_norm"]) == ([3.0, 7.0], 99.0, 0.5)
