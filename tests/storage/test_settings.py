from pathlib import Path

import pytest
from pydantic import ValidationError

from proxy.settings import ProxySettings
from storage.settings import UNREADABLE, Settings, explain
from trainer.settings import TrainerSettings


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def toml(text: str) -> None:
    Path("slipstream.toml").write_text(text)


def test_the_defaults_work(tmp_path: Path) -> None:
    settings = Settings()
    assert settings.data == tmp_path / "slipstream-data"
    assert (settings.policy, settings.model, settings.max_staleness) == ("policy", None, 4)
    assert settings.journal == tmp_path / "slipstream-data" / "journal"
    assert settings.adapters == tmp_path / "slipstream-data" / "adapters"


def test_arguments_stand_above_variables_above_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    toml('policy = "file"\nmax_staleness = 2\nmodel = "m"\n[group]\nsize = 6\nmin_size = 3\n')
    monkeypatch.setenv("SLIPSTREAM_POLICY", "variable")
    monkeypatch.setenv("SLIPSTREAM_MAX_STALENESS", "3")
    monkeypatch.setenv("SLIPSTREAM_GROUP__SIZE", "5")
    settings = TrainerSettings(policy="argument")
    assert (settings.policy, settings.max_staleness, settings.model) == ("argument", 3, "m")
    assert (settings.group.size, settings.group.min_size, settings.group.max_wait) == (5, 3, 3600.0)


def test_home_and_relative_folders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLIPSTREAM_DATA", "~/kept")
    assert Settings().data == tmp_path / "home" / "kept"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:1", ("http://a:1",)),
        ("http://a:1/v1, http://b:2/", ("http://a:1", "http://b:2")),
        (" , http://a:1/v1/ ,", ("http://a:1",)),
    ],
)
def test_upstreams_are_base_urls_with_commas(text: str, urls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_UPSTREAM", text)
    assert TrainerSettings().upstream == urls
    assert ProxySettings().upstream == urls


_WRONG = [
    ("SLIPSTREAM_MAX_STALENESS", "many", "max_staleness", "valid integer", "'many'"),
    ("SLIPSTREAM_MAX_STALENESS", "0", "max_staleness", "greater than or equal to 1", "'0'"),
    ("SLIPSTREAM_POLICY", "../up", "policy", "1 to 64 letters", "'../up'"),
    ("SLIPSTREAM_POLICY", "", "policy", "1 to 64 letters", "''"),
    ("SLIPSTREAM_GROUP__SIZE", "1", "group.size", "greater than or equal to 2", "'1'"),
    ("SLIPSTREAM_TRAIN__LEARNING_RATE", "fast", "train.learning_rate", "valid number", "'fast'"),
    ("SLIPSTREAM_TRAIN__LOSS", "ppo", "train.loss", "'grpo' or 'cispo'", "'ppo'"),
    ("SLIPSTREAM_TRAINER__INTERVAL", "0", "trainer.interval", "greater than 0", "'0'"),
]


@pytest.mark.parametrize(("variable", "value", "name", "expected", "found"), _WRONG)
def test_a_bad_value_is_one_clear_line(
    variable: str, value: str, name: str, expected: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError) as caught:
        TrainerSettings()
    (line,) = explain(caught.value).splitlines()
    assert line.startswith(f"setting {name} (slipstream.toml or {variable}): ")
    assert expected in line
    assert line.endswith(f"found {found}")


_KEYS = [
    ("SLIPSTREAM_UPSTREAM", "https://u:k3y-k3y@host", "without user, password and query is wanted"),
    ("SLIPSTREAM_UPSTREAM", "https://host/?api_key=k3y-k3y", "without user, password and query is wanted"),
    ("SLIPSTREAM_UPSTREAM", "ftp://u:k3y-k3y@host", "begins with http:// or https://"),
    ("SLIPSTREAM_JUDGE_BASE_URL", "https://u:k3y-k3y@host/v1", "without user, password and query is wanted"),
    ("SLIPSTREAM_JUDGE_BASE_URL", "https://host/v1?key=k3y-k3y", "without user, password and query is wanted"),
    ("SLIPSTREAM_PORT", "http://u:k3y-k3y@host", "valid integer"),
]


@pytest.mark.parametrize(("variable", "value", "expected"), _KEYS)
def test_a_key_in_a_bad_value_is_not_shown(
    variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError) as caught:
        (TrainerSettings if "JUDGE" in variable else ProxySettings)()
    said = explain(caught.value)
    assert expected in said
    assert "k3y-k3y" not in said


def test_a_key_that_is_no_text_is_not_shown() -> None:
    toml("admin_key = 123454321\n")
    with pytest.raises(ValidationError) as caught:
        ProxySettings()
    assert "setting admin_key" in explain(caught.value)
    assert "123454321" not in explain(caught.value)


def test_an_unknown_name_in_a_table_is_refused() -> None:
    toml("[group]\nsice = 4\n")
    with pytest.raises(ValidationError) as caught:
        TrainerSettings()
    assert explain(caught.value) == (
        "setting group.sice (slipstream.toml or SLIPSTREAM_GROUP__SICE): Extra inputs are not permitted; found 4"
    )


def test_tables_of_the_other_part_are_no_fault() -> None:
    toml("[group]\nsize = 4\n[session]\nidle = 5.0\n")
    assert ProxySettings().session.idle == 5.0
    assert TrainerSettings().group.size == 4


def test_a_file_that_is_no_toml_is_named() -> None:
    toml("policy = \n")
    with pytest.raises(UNREADABLE) as caught:
        Settings()
    assert explain(caught.value) == "slipstream.toml is not TOML: Invalid value (at line 1, column 10)"


def test_a_table_in_one_variable_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_GROUP", '{"size": 6}')
    assert TrainerSettings().group.size == 6
    monkeypatch.setenv("SLIPSTREAM_GROUP", "size=6")
    with pytest.raises(UNREADABLE) as caught:
        TrainerSettings()
    assert 'error parsing value for field "group"' in explain(caught.value)


def test_every_wrong_setting_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_POLICY", "!")
    monkeypatch.setenv("SLIPSTREAM_MAX_STALENESS", "x")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert len(explain(caught.value).splitlines()) == 2
