"""The benchmark of head and loss, on sizes too small to measure anything: the figures of ours are those of float64."""

from __future__ import annotations

import pytest

from scripts.bench import heads


@pytest.mark.parametrize("name", ["ours", "ours grpo", "ours cispo"])
def test_ours_is_near_float64(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for constant, value in (("TOKENS", 80), ("HIDDEN", 16), ("VOCABULARY", 100)):
        monkeypatch.setattr(heads, constant, value)
    heads.measure(name, 1)
    cells = capsys.readouterr().out.strip(" |\n").split(" | ")
    assert cells[0] == name
    assert float(cells[4]) < 1e-5
    # The gradient of a head's states has their precision, bfloat16.
    assert float(cells[5]) < (2e-2 if name == "ours" else 1e-7)
