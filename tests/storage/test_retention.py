"""Old sessions go, a little at a time; what is still needed stays, and so does what can be read of the rest."""

from __future__ import annotations

import time

import pytest

from storage import calls, groups, retention, rewards, sessions
from storage.retention import EVERYTHING, Keep, Retention, used_bytes
from storage.rewards import WAIT_SECONDS
from storage.states import GroupState, Outcome
from storage.types import GroupId
from tests.storage.recorded import BEGAN, Recorded, a_reward, call_start, capture
from tests.storage.test_calls import conversation

DAY = 24 * 3600.0
LATER = BEGAN + 1000 * DAY


def a_session(recorded: Recorded, name: str, *, age: float = 500 * DAY, turns: int = 3, close: bool = True) -> int:
    """A session whose last call is so many seconds old at `LATER`."""
    for number, messages in enumerate(conversation(turns)):
        start = call_start(name, started_at=LATER - age)
        recorded.turn(start, messages, f"{number} ".ljust(1000, "a"), capture([1, 2, number], [3]))
    recorded.reward(a_reward(name, 1.0))
    if close:
        recorded.close(name)
    recorded.take_in()
    return recorded.session(name).key


def done(recorded: Recorded, *keys: int) -> None:
    for key in keys:
        sessions.set_outcome(recorded.db, key, Outcome.SKIPPED, "stale", None, 1.0)  # type: ignore[arg-type]


def left(recorded: Recorded) -> list[str]:
    return [row["session_id"] for row in recorded.db.all("SELECT session_id FROM sessions ORDER BY key")]


def run(recorded: Recorded, keep: Keep, now: float = LATER) -> int:
    """A whole pass; returns its steps."""
    retained, steps = Retention(recorded.ingestion._db, keep), 1
    while retained.step(now):
        steps += 1
        assert steps < 1000
    return steps


def claim(recorded: Recorded, group: str, *names: str) -> None:
    assert groups.claim(recorded.db, GroupId(group), [recorded.session(name) for name in names], 1.0)


def test_nothing_is_deleted_by_default(recorded: Recorded) -> None:
    done(recorded, a_session(recorded, "old"))
    assert run(recorded, Keep()) == 1
    assert left(recorded) == ["old"]


def test_what_is_old_and_done_with_goes(recorded: Recorded) -> None:
    names = (
        "done",
        "open",
        "waits",
        "skipped",
        "ready",
        "ready too",
        "scored",
        "scored too",
        "past",
        "past too",
        "new",
    )
    keys = {
        name: a_session(recorded, name, age=500 * DAY if name != "new" else DAY, close=name != "open") for name in names
    }
    recorded.call(call_start("skipped", scenario=None, started_at=LATER - 500 * DAY), "an episode without a scenario")
    recorded.close("skipped")
    recorded.take_in()
    done(recorded, keys["done"], keys["new"], keys["skipped"])
    for group in ("ready", "scored", "past"):
        claim(recorded, group, group, f"{group} too")
    for group in ("scored", "past"):
        groups.move(recorded.db, groups.get(recorded.db, GroupId(group)), GroupState.SCORED)
    groups.move(recorded.db, groups.get(recorded.db, GroupId("past")), GroupState.SKIPPED, "no variance")
    done(recorded, keys["past"], keys["past too"])
    recorded.reward(a_reward("nobody", 1.0, created_at=LATER - 500 * DAY))
    recorded.reward(a_reward("nobody yet", 1.0, created_at=LATER - 10))
    recorded.take_in()
    run(recorded, Keep(days=30))
    assert left(recorded) == ["open", "waits", "ready", "ready too", "scored", "scored too", "new"]
    assert {row["session_id"] for row in recorded.db.all("SELECT session_id FROM rewards")} == {
        *left(recorded),
        "nobody yet",
    }
    for table in ("calls", "choices"):
        assert recorded.db.number(f"SELECT count(*) FROM {table}") == 3 * 7
    assert recorded.db.all("PRAGMA foreign_key_check") == []
    assert sessions.states(recorded.db) == {"open": 1, "closed": 1, "grouped": 4, "skipped": 1}
    run(recorded, Keep(days=0.5))
    assert left(recorded) == ["open", "waits", "ready", "ready too", "scored", "scored too"]


def test_a_large_session_goes_in_parts_that_can_be_read(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_CALLS", 7)
    key = a_session(recorded, "large", turns=30)
    done(recorded, key)
    retained = Retention(recorded.ingestion._db, Keep(days=30))
    numbers = []
    while retained.step(LATER):
        found = calls.of_session(recorded.db, key)  # type: ignore[arg-type]
        numbers.append(len(found))
        assert [list(call.prompt_ids) for call in found] == [[1, 2, n] for n in range(len(found))]
        for call in found:
            assert calls.body(recorded.db, call.seq)
    assert numbers == [23, 16, 9, 2, 0]
    assert left(recorded) == []


def test_rewards_that_wait_in_vain_go_after_a_day_whatever_is_kept(recorded: Recorded) -> None:
    for created_at in (BEGAN, BEGAN + 2 * WAIT_SECONDS):
        recorded.reward(a_reward("nowhere", 1.0, created_at=created_at))
    recorded.take_in()
    assert Retention(recorded.db, EVERYTHING).step(BEGAN + 2 * WAIT_SECONDS + 1) is False
    (row,) = recorded.db.all("SELECT created_at FROM rewards")
    assert row["created_at"] == BEGAN + 2 * WAIT_SECONDS


def test_beyond_its_size_the_oldest_go_and_the_disk_is_given_back(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_CALLS", 10)
    for number in range(40):
        done(recorded, a_session(recorded, f"s{number}", age=DAY, turns=5))
    full = used_bytes(recorded.db)
    run(recorded, Keep(gigabytes=full / 2e9))
    names = left(recorded)
    assert names == [f"s{number}" for number in range(40 - len(names), 40)]
    assert 5 <= len(names) <= 20
    assert used_bytes(recorded.db) <= full / 2
    assert recorded.db.number("PRAGMA page_count") * recorded.db.number("PRAGMA page_size") <= 0.6 * full


def test_recording_goes_on_meanwhile(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the ingestion runs, between two batches; the deleted session's id begins anew."""
    monkeypatch.setattr(retention, "_CALLS", 2)
    for number in range(20):
        done(recorded, a_session(recorded, f"s{number}", age=LATER - BEGAN))
    recorded.abandon()
    recorded.open()
    recorded.ingestion._upkeep._retention = Retention(recorded.ingestion._db, Keep(days=1))
    with recorded.running():
        for number in range(200):
            recorded.call(call_start(f"new {number % 7}", started_at=time.time()), "hello")
        recorded.call(call_start("s3", started_at=time.time()), "again")
        deadline = time.monotonic() + 60
        while len(left(recorded)) != 8 or recorded.db.number("SELECT count(*) FROM calls") != 201:
            assert time.monotonic() < deadline, left(recorded)
            time.sleep(0.01)
        assert recorded.ingestion.problem is None
    assert recorded.session("s3").calls == 1
    assert rewards.of_session(recorded.db, recorded.session("s3").key) == []
