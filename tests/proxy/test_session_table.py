"""Which version a session is pinned to, also while the database does not know yet what has happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.recorder import Recorder
from proxy.sessions import SessionTable
from storage.states import ClosedBy
from storage.types import VersionNumber
from tests.storage.recorded import Recorded, call_start, identity

ONE, TWO = VersionNumber(1), VersionNumber(2)
S = identity("s")


class Table(SessionTable):
    """A table whose records are taken into the database when the test says so."""

    def __init__(self, recorded: Recorded) -> None:
        self.live = ONE
        self.recorded = recorded
        super().__init__(recorded.db, Recorder(recorded.writer), lambda: self.live)

    def call(self, *, ends: bool = False) -> VersionNumber:
        version = self.version(S)
        session = self.begin(S, version, 1.0, "train")
        self.recorded.call(call_start("s", version=version), "hello")
        self.finish(session, 2.0, ends=ends)
        return version


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    recorded = Recorded(tmp_path)
    yield Table(recorded)
    recorded.abandon()


def test_a_session_keeps_its_version(table: Table) -> None:
    assert table.call() == ONE
    table.live = TWO
    assert table.call() == ONE


def test_calls_at_once_of_a_new_session_get_one_version(table: Table) -> None:
    first = table.begin(S, table.version(S), 1.0, "train")
    table.live = TWO
    assert table.version(S) == ONE
    assert table.begin(S, table.version(S), 1.0, "train") is first
    assert first.under_way == 2


@pytest.mark.parametrize("by_call", [True, False])
def test_the_call_after_the_end_gets_the_live_version_at_once(table: Table, by_call: bool) -> None:
    """The database takes the end in a moment later: until then it says that the session is open."""
    table.call()
    table.recorded.take_in()
    table.live = TWO
    if by_call:
        table.call(ends=True)
    else:
        assert table.end(S, ClosedBy.ENDED, 3.0)
    assert table.has_ended(S)
    assert table.call() == TWO
    assert not table.has_ended(S)
    table.recorded.take_in()
    assert [table.recorded.session("s", episode).version for episode in (1, 2)] == [ONE, TWO]


def test_the_end_of_an_idle_session_counts_at_once(table: Table) -> None:
    table.call()
    table.close_idle(1000.0, 10.0)
    table.recorded.take_in()
    table.live = TWO
    assert table.version(S) == ONE
    assert not table.has_ended(S)
    assert table.end(S, ClosedBy.ENDED, 1001.0)
    assert table.version(S) == TWO


def test_what_the_table_knows(table: Table) -> None:
    assert not table.knows(S, None)
    table.call()
    assert table.knows(S, None)
    assert not table.knows(S, 1)
    table.recorded.take_in()
    assert table.knows(S, 1)
    assert not table.knows(S, 2)


def test_ended_sessions_are_not_remembered_for_ever(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.sessions._ENDED", 3)
    for number in range(5):
        session = table.begin(identity(f"{number}"), ONE, 1.0, "train")
        table.finish(session, 1.0, ends=True)
    assert [table.has_ended(identity(f"{number}")) for number in range(5)] == [False, False, True, True, True]
