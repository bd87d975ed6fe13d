"""What is wrong with the database is not taken for a fault of what it is given, nor the other way round."""

from __future__ import annotations

import json

from storage.database import FILE
from tests.storage.damage import damage
from tests.storage.recorded import Recorded, call_start


def problem(recorded: Recorded) -> str:
    """Why the database took nothing."""
    recorded.ingestion.catch_up()
    return recorded.ingestion.problem or ""


def test_a_disk_that_is_full_while_interrupted_calls_are_marked(recorded: Recorded) -> None:
    """What was rolled back is nobody's parent."""
    start = call_start("s")
    recorded.begin(start, [{"role": "user", "content": "hello"}])
    recorded.take_in()
    recorded.abandon()
    recorded.open()
    # It fails behind the insertion, as a COMMIT does on a full disk.
    recorded.db.execute(
        "CREATE TRIGGER full BEFORE UPDATE OF calls ON sessions BEGIN INSERT INTO nowhere VALUES (1); END"
    )
    assert problem(recorded)
    recorded.db.execute("DROP TRIGGER full")
    assert not problem(recorded)
    (row,) = recorded.db.all("SELECT parent, depth FROM calls")
    assert (row["parent"], row["depth"]) == (None, 0)


def test_what_comes_of_a_call_whose_start_is_refused_is_kept(recorded: Recorded) -> None:
    recorded.db.execute("CREATE TRIGGER no BEFORE INSERT ON sessions BEGIN SELECT RAISE(ABORT, 'no'); END")
    start = call_start("s")
    recorded.call(start, "hello")
    recorded.take_in()
    kept = {path.name: path.read_bytes() for path in (recorded.folder / "journal" / "refused").iterdir()}
    assert {f"{start.id}.{part}" for part in ("start", "response", "capture", "end")} <= kept.keys()
    assert json.loads(kept[f"{start.id}.response"])


def test_a_damaged_page_is_no_poison_row(recorded: Recorded) -> None:
    recorded.call(call_start("a"), "hello")
    recorded.take_in()
    recorded.abandon()
    damage(recorded.folder / FILE, "calls")
    recorded.open()
    for number in range(3):
        recorded.call(call_start("b"), f"hello {number}")
    assert "malformed" in problem(recorded)
    assert recorded.ingestion.refused == 0
