from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.database import Database
from tests.storage.recorded import Recorded


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    recorded = Recorded(tmp_path / "data")
    yield recorded
    recorded.abandon()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = Database(tmp_path / "data")
    yield db
    db.close()
