"""One real vLLM, one real model and one real service for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.services import find_model
from scripts.small_model import NAME
from tests.e2e.adapters import random_adapter
from tests.e2e.service import Service
from tests.e2e.training import train


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(find_model(None, print, tmp_path_factory.mktemp("model") / "model.log"))


@pytest.fixture(scope="session")
def service(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    judge = Path(__file__).parent / "judge.py"
    started = Service.start(tmp_path_factory.mktemp("service"), small_model, judge)
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="session")
def trained(service: Service) -> list[dict[str, Any]]:
    """The runs of the short training; after it the service's newest version has learned the rewarded words."""
    return train(service)


Report = Callable[[str], None]

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    """Takes figures that a run should show, whether its tests pass or not."""
    return pytestconfig.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_FIGURES, []):
        terminalreporter.write_line(f"measured: {line}")


@dataclass(frozen=True)
class Vllm:
    """The service's vLLM, asked directly."""

    base_url: str
    secret: str
    model: str
    adapters: dict[int, Path]
    """Random ones, that no training made."""


@pytest.fixture(scope="session")
def vllm(service: Service, small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Vllm:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {seed: random_adapter(small_model, folder / f"random-{seed}", seed) for seed in (1, 2)}
    secret = (service.data / "plugin.secret").read_text().strip()
    return Vllm(service.vllm_url, secret, NAME, adapters)
