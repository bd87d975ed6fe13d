"""Settings that every part shares, and where settings come from.

In this order: the command line, `SLIPSTREAM_*` variables, `slipstream.toml` in the working folder, the default. A
setting of a table is a variable with two underscores: ``[group] size`` is ``SLIPSTREAM_GROUP__SIZE``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from storage.types import is_policy_name

FILE = "slipstream.toml"

ADDRESS_MARKS = "@?#"
"""With what the parts of an address begin that may hold a password or a key."""

UNREADABLE = (ValidationError, SettingsError, tomllib.TOMLDecodeError)
"""What settings raise that cannot be used; `explain` says it in words."""


class Table(BaseModel):
    """A table of `slipstream.toml`; a name that it does not have is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(BaseSettings):
    """What proxy and trainer both need to know."""

    model_config = SettingsConfigDict(
        env_prefix="SLIPSTREAM_", env_nested_delimiter="__", toml_file=FILE, extra="ignore", frozen=True
    )

    data: Path = Path("slipstream-data")
    """The folder of everything that is kept: database, journal, adapters, logs."""
    policy: str = "policy"
    """The policy's name; its versions are ``<policy>@<n>``."""
    model: str | None = None
    """The base model as vLLM names it. None: the one model that vLLM serves."""
    max_staleness: int = Field(4, ge=1)
    """How many updates a session's version may lie behind the newest and still be trained on."""
    fsync: bool = False
    """Whether what was acknowledged survives a loss of power, too, and not only the death of a process."""

    @field_validator("data")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("policy")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not is_policy_name(value):
            raise ValueError("1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def journal(self) -> Path:
        return self.data / "journal"

    @property
    def adapters(self) -> Path:
        return self.data / "adapters"

    @property
    def logs(self) -> Path:
        return self.data / "logs"


def explain(error: Exception) -> str:
    """One line for each wrong setting: its name, what was found, what is expected."""
    if isinstance(error, tomllib.TOMLDecodeError):
        return f"{FILE} is not TOML: {error}"
    if not isinstance(error, ValidationError):
        return f"settings from SLIPSTREAM_* variables: {error} (a table is given as JSON, or name by name)"
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        variable = "SLIPSTREAM_" + name.replace(".", "__").upper()
        found = repr(problem["input"])
        # A key, or one in an address, is not for a terminal or a log.
        secret = name.endswith("_key") or any(mark in found for mark in ADDRESS_MARKS)
        shown = "" if secret else f"; found {found}"
        lines.append(f"setting {name} ({FILE} or {variable}): {problem['msg']}{shown}")
    return "\n".join(lines)
