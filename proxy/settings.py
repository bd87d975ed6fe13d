"""Settings of the proxy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from proxy.capture import Exploration
from storage.settings import ADDRESS_MARKS, Settings, Table


class SessionSettings(Table):
    idle: float = Field(300.0, gt=0)
    """Seconds without a call after which an open session closes."""


class KeepSettings(Table):
    """How long sessions are kept. None: for ever."""

    days: float | None = Field(None, gt=0)
    """Since a session's last call."""
    gigabytes: float | None = Field(None, gt=0)
    """Of the database; beyond it the oldest go."""


class SamplingSettings(Table):
    """With what the policy's calls are sampled. (`policy` is the policy's name, hence a table of its own.)"""

    mode: Literal["client", "explore"] = "client"
    """``client``: as the agent asks. ``explore``: as the rest of this table says, whatever the agent asks."""
    temperature: float = Field(1.0, ge=0.01, le=2)
    """vLLM takes less than 0.01 for greedy or raises it, and refuses more than 2."""
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    """0: all tokens."""

    @property
    def exploration(self) -> Exploration | None:
        return Exploration(self.temperature, self.top_p, self.top_k) if self.mode == "explore" else None


class LimitSettings(Table):
    """What is refused before vLLM sees it, with a 4xx that says so."""

    body: int = Field(256, ge=1)
    """MiB of a request's body."""
    n: int = Field(128, ge=1)
    """Choices of one call."""
    calls: int = Field(1024, ge=1)
    """Calls under way of one client key; without keys, of all clients together."""


class ProxySettings(Settings):
    host: str = "127.0.0.1"
    port: int = Field(8400, ge=1, le=65535)
    upstream: Annotated[tuple[str, ...], NoDecode] = ()
    """Base URLs of vLLM, without ``/v1``, comma between them."""
    upstream_api_key: SecretStr | None = None
    """vLLM's own key (``--api-key``). A client's key is never forwarded."""
    alias: Annotated[tuple[str, ...], NoDecode] = ("agent",)
    """Names by which agents call the policy, comma between them; ``*`` is every name that vLLM does not serve."""
    admin_key: SecretStr | None = None
    """None: made at the first start and kept in ``admin.key`` in the data folder."""
    drain: int = Field(30, ge=0)
    """Seconds that calls under way have to end after SIGTERM; what is left then is cut off."""
    session: SessionSettings = SessionSettings()
    limit: LimitSettings = LimitSettings()
    keep: KeepSettings = KeepSettings()
    sampling: SamplingSettings = SamplingSettings()

    @field_validator("upstream", "alias", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("admin_key")
    @classmethod
    def _none_if_empty(cls, value: SecretStr | None) -> SecretStr | None:
        # An empty variable is none: it would let everyone in.
        return value if value is not None and value.get_secret_value().strip() else None

    @field_validator("upstream")
    @classmethod
    def _base_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not url.startswith(("http://", "https://")):
                raise ValueError("an address is wanted that begins with http:// or https://")
            # It is shown, recorded and logged as it stands.
            if any(mark in url for mark in ADDRESS_MARKS):
                raise ValueError(
                    "an address without user, password and query is wanted; vLLM's key is the setting upstream_api_key"
                )
        return tuple(url.rstrip("/").removesuffix("/v1") for url in value)
