"""The benchmark of the storage, on databases too small to measure anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts.bench import storing
from storage import calls


def test_it_measures_both_sizes_and_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SMALL", 200), ("ROUNDS", 2), ("RECORDED", 3)):
        monkeypatch.setattr(storing, name, value)
    monkeypatch.setattr(sys, "argv", ["storing", "--quick", "--folder", str(tmp_path), "--json", str(tmp_path / "f")])
    storing.main()
    figures = json.loads((tmp_path / "f").read_text())
    assert set(figures) == {"calls", "wal_mb", "recording_ratio", "listing_ratio", "pick_up_ratio"}
    assert figures["calls"] == 2000
    assert all(value > 0 for value in figures.values())


def test_what_is_multiplied_is_as_whole_as_what_it_was_made_of(tmp_path: Path) -> None:
    place = storing.Place(tmp_path)
    place.record(16)
    place.take_in()
    place.pick_up()
    place.multiply(3, print)
    db = place.db
    for table, rows in (("sessions", 48), ("calls", 480), ("choices", 480), ("rewards", 48), ("outcomes", 48)):
        assert db.number(f"SELECT count(*) FROM {table}") == rows
    assert db.all("PRAGMA foreign_key_check") == []
    assert db.number("SELECT n FROM counts WHERE what = 'session' AND name = 'trained'") == 48
    last = db.number("SELECT max(seq) FROM calls")
    assert calls.body(db, last) == calls.body(db, last - 320)
    place.close()
