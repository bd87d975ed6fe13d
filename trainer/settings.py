"""Settings of the trainer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from storage.settings import ADDRESS_MARKS, Settings, Table
from storage.update_settings import UpdateSettings
from trainer.question import HOW, Terms


class GroupSettings(Table):
    size: int = Field(8, ge=2, le=64)
    """Sessions of one scenario that make a group."""
    min_size: int = Field(4, ge=2)
    """How few do when the oldest has waited `max_wait`, or a run was asked for."""
    max_wait: float = Field(3600.0, gt=0)
    """Seconds."""
    min_spread: float = Field(0.05, ge=0)
    """A group whose best and worst rewards lie closer together teaches nothing."""


class RewardSettings(Table):
    wait: float = Field(10.0, ge=0)
    """Seconds after the end of a group's last session that its clients have to give their rewards."""
    weights: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    """Of named rewards, which then make up a session's reward together; none: the reward named `reward` alone."""

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, value: dict[str, float]) -> dict[str, float]:
        if value and not any(value.values()):
            raise ValueError("at least one weight other than 0 is wanted")
        return value


class JudgeSettings(Table):
    context: int = Field(32768, ge=1024)
    """Tokens that the judge can take, as tiktoken's cl100k_base counts them; a longer group is cut, and says so."""
    rubric: str = Field(HOW, min_length=1)
    """What makes one attempt better than another, in words for the judge."""
    rubrics: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """By scenario, in place of `rubric`."""

    tokens_per_day: int | None = Field(None, ge=1)
    """What the judge may cost between 0:00 and 24:00 UTC; then groups wait. None: without limit."""
    backoff: float = Field(10.0, ge=0)
    """Seconds until the judge is asked again for a group that it gave no answer for; twice as long each time."""

    def terms(self, scenario: str) -> Terms:
        """How the groups of a scenario are judged."""
        return Terms(self.rubrics.get(scenario, self.rubric), self.context)


class LoopSettings(Table):
    interval: float = Field(60.0, gt=0)
    """Seconds between two cycles; new work starts one earlier."""
    groups: int = Field(4, ge=1)
    """Scored groups that start a run by themselves."""


class TrainSettings(UpdateSettings):
    agents: frozenset[str] = frozenset()
    """Names of agents (`X-Agent`): only their calls are trained; empty: all. The others stay what they read."""


class TrackingSettings(Table):
    tensorboard: Path | None = None
    """A folder for TensorBoard's event files."""
    wandb: str | None = Field(None, min_length=1)
    """A project of Weights & Biases, whose own variables (`WANDB_API_KEY`, `WANDB_MODE`) say the rest."""

    @field_validator("wandb")
    @classmethod
    def _is_installed(cls, value: str | None) -> str | None:
        if value is not None and find_spec("wandb") is None:
            raise ValueError("the package wandb is not installed: .venv/bin/python -m pip install wandb")
        return value


class TrainerSettings(Settings):
    upstream: Annotated[tuple[str, ...], NoDecode] = ()
    """vLLM's base URLs; the first one tells where the base model's weights lie."""
    upstream_api_key: SecretStr | None = None
    judge_base_url: str | None = None
    """An OpenAI-compatible endpoint, with its ``/v1``."""
    judge_model: str | None = None
    judge_api_key: SecretStr | None = None
    group: GroupSettings = GroupSettings()
    reward: RewardSettings = RewardSettings()
    judge: JudgeSettings = JudgeSettings()
    trainer: LoopSettings = LoopSettings()
    train: TrainSettings = TrainSettings()
    tracking: TrackingSettings = TrackingSettings()

    @field_validator("judge_base_url")
    @classmethod
    def _plain_address(cls, value: str | None) -> str | None:
        # It is shown, recorded and logged as it stands.
        if value is not None and any(mark in value for mark in ADDRESS_MARKS):
            raise ValueError(
                "an address without user, password and query is wanted; the judge's key is the setting judge_api_key"
            )
        return value

    @field_validator("upstream", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip().rstrip("/").removesuffix("/v1") for part in value.split(",") if part.strip())
        return value
