"""What lies in the data folder, in bytes."""

from storage import figures
from tests.storage.recorded import Recorded, call_start


def test_the_backlog_is_what_is_not_taken_in(recorded: Recorded) -> None:
    def backlog() -> int:
        return figures.read(recorded.folder, recorded.db).journal_backlog_bytes

    assert backlog() == 0
    recorded.call(call_start("s"), "hello")
    assert backlog() == recorded.writer.tail.position.offset > 0
    recorded.take_in()
    found = figures.read(recorded.folder, recorded.db)
    assert (found.journal_backlog_bytes, found.database_bytes > 0) == (0, True)
    assert found.wal_bytes > 0
    recorded.call(call_start("s"), "more")
    recorded.restart()
    assert backlog() == 0
