"""Misspelt settings are refused with the nearest right name; the documents name every right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.settings import ProxySettings
from scripts import known_settings
from trainer.settings import TrainerSettings

CONFIGURATION = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.mark.parametrize(
    ("toml", "environment", "said"),
    [
        ("", {}, None),
        ('model = "m"\n[group]\nsize = 4', {"SLIPSTREAM_GROUP__SIZE": "4", "SLIPSTREAM_PORT": "1", "HOME": "/"}, None),
        ("", dict.fromkeys(known_settings.VARIABLES_ALONE, "x"), None),
        ('judge_modle = "m"', {}, "slipstream.toml: 'judge_modle' is no setting; is judge_model meant?"),
        ("[grup]\nsize = 4", {}, "slipstream.toml: 'grup' is no setting; is group meant?"),
        ("", {"SLIPSTREAM_ALIASS": "a"}, "SLIPSTREAM_ALIASS is no setting; is SLIPSTREAM_ALIAS meant?"),
        ("", {"SLIPSTREAM_GRUP__SIZE": "4"}, "SLIPSTREAM_GRUP__SIZE is no setting; is SLIPSTREAM_GROUP meant?"),
    ],
)
def test_unknown_settings_are_said(tmp_path: Path, toml: str, environment: dict[str, str], said: str | None) -> None:
    file = tmp_path / "slipstream.toml"
    file.write_text(toml)
    assert known_settings.unknown(file, environment) == said


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    assert known_settings.unknown(tmp_path / "slipstream.toml", {}) is None


def test_the_document_names_every_setting() -> None:
    text = CONFIGURATION.read_text()
    named: set[str] = set()
    for settings in (ProxySettings, TrainerSettings):
        for name, field in settings.model_fields.items():
            table = field.annotation
            inner = getattr(table, "model_fields", None)
            named.update(inner or [name])
    assert {name for name in named if f"`{name}`" not in text and f" {name}`" not in text} == set()
    assert all(f"`{variable}`" in text for variable in known_settings.VARIABLES_ALONE)
