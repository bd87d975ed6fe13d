"""What the README tells people to type exists, and says what the program itself does."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest

from scripts import known_settings
from scripts.vllm_server import VllmServer
from storage.settings import Settings
from storage.update_settings import UpdateSettings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\./scripts/([a-z_/]+)", README))))
def test_its_programs_can_be_run(name: str) -> None:
    assert os.access(ROOT / "scripts" / name, os.X_OK)


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_its_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_its_python_is_python() -> None:
    (change,) = blocks("python")
    ast.parse(change)


def test_its_settings_exist(tmp_path: Path) -> None:
    (toml,) = blocks("toml")
    (tmp_path / "slipstream.toml").write_text(toml)
    assert tomllib.loads(toml)
    assert known_settings.unknown(tmp_path / "slipstream.toml", {}) is None
    for variable in re.findall(r"SLIPSTREAM_[A-Z_]+", README):
        if not variable.endswith("_"):
            assert known_settings.unknown(tmp_path / "none", {variable: "x"}) is None


def test_its_vllm_is_started_as_serve_does(tmp_path: Path) -> None:
    server = VllmServer("MODEL", "MODEL", 8401, Settings(data=tmp_path), UpdateSettings())
    (told,) = (block for block in blocks("bash") if "--middleware" in block)
    words = told.replace("\\\n", " ").split()
    needed = words[words.index("--model") :]
    assert [word for word in needed if word not in server.command()] == []
    assert server.environment()["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in words
