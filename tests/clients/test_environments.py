"""The clients' environments: made once, made anew when what they are made from changes."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.environments import prepare

pytestmark = pytest.mark.clients


def test_an_environment_is_kept_until_its_requirements_change(tmp_path: Path) -> None:
    source, folder = tmp_path / "client", tmp_path / "environments" / "client"
    source.mkdir()
    (source / "requirements.txt").write_text("idna==3.20\n")
    (source / "agent.py").write_text("import idna; print(idna.__version__)")

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: prepare(source, folder), range(2))
    assert first == second
    assert subprocess.check_output(first.command, text=True) == "3.20\n"

    (folder / "trace").touch()
    prepare(source, folder)
    assert (folder / "trace").exists()

    (source / "requirements.txt").write_text("sniffio==1.3.1\n")
    prepare(source, folder)
    assert not (folder / "trace").exists()
    assert subprocess.run(first.command, capture_output=True, check=False).returncode == 1


def test_what_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("not a requirement\n")
    with pytest.raises(RuntimeError, match=r"uv pip install … ended with"):
        prepare(tmp_path, tmp_path / "environments" / "client")
