from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from storage.database import Database
from tests.storage.recorded import Recorded

# A loaded machine is slow, which is no fault of the code.
settings.register_profile("slipstream", deadline=None, max_examples=60)
settings.load_profile("slipstream")


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
