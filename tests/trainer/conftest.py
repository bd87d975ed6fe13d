from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.trainer.loopback import FakeModels, loopback

if TYPE_CHECKING:
    from tests.trainer.workshop import Workshop


@pytest.fixture(scope="session")
def served_models() -> Iterator[tuple[FakeModels, str]]:
    models = FakeModels()
    with loopback(models) as url:
        yield models, url


@pytest.fixture
def models(served_models: tuple[FakeModels, str]) -> FakeModels:
    """vLLM's list of models, as the trainer asks for it."""
    served_models[0].reset()
    return served_models[0]


@pytest.fixture
def workshop(tmp_path: Path, models: FakeModels, served_models: tuple[FakeModels, str]) -> Iterator[Workshop]:
    from tests.trainer.workshop import Workshop  # with it come libraries that take seconds

    workshop = Workshop(tmp_path / "data", served_models[1])
    yield workshop
    workshop.abandon()
