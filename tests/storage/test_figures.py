"""What lies in the data folder, in bytes."""

from tests.storage.recorded import Recorded, call_start


def test_the_backlog_is_what_is_not_taken_in(recorded: Recorded) -> None:
    assert recorded.ingestion.figures().journal_backlog_bytes == 0
    recorded.call(call_start("s"), "hello")
    backlog = recorded.ingestion.figures().journal_backlog_bytes
    assert backlog == recorded.writer.position.offset > 0
    recorded.take_in()
    figures = recorded.ingestion.figures()
    assert (figures.journal_backlog_bytes, figures.database_bytes > 0) == (0, True)
    assert figures.wal_bytes > 0
    recorded.call(call_start("s"), "more")
    recorded.restart()
    assert recorded.ingestion.figures().journal_backlog_bytes == 0
