"""From every released schema forward, with data in it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pysqlite3 as sqlite3
import pytest

from storage import calls, groups, migrations, sessions
from storage.database import FILE
from storage.states import SessionState
from storage.types import SessionKey
from tests.storage.recorded import Recorded, call_start, capture
from tests.storage.test_calls import assistant, user

Insert = Callable[..., None]

_REQUESTS = (b'{"messages":[{"role":"user","content":"one"}]}', b'{"messages":[{"role":"user","content":"one"},2]}')
_RESPONSES = (b"Z\x00\xff\x00 as no text is", b"")


def _ids(*numbers: int) -> bytes:
    return struct.pack(f"{len(numbers)}i", *numbers)


def _fill(insert: Insert) -> None:
    """What the first version leaves: a closed session of two calls, a skipped, a grouped, a trained, an open one."""
    for key, state in enumerate(("closed", "skipped", "closed", "closed", "open"), 1):
        insert(
            "sessions",
            key=key, owner="default", session_id=f"s{key}", episode=1, scenario="task", split="train", state=state,
            reason="untagged" if state == "skipped" else None, closed_by="idle" if state == "closed" else None,
            version=0, opened_at=1.0, last_call_at=2.0, closed_at=3.0, calls=2 if key == 1 else 0,
        )  # fmt: skip
    delta = struct.pack("<cII", b"D", len(_REQUESTS[0]) - 2, 2) + b",2"
    delta_ids = b"D" + struct.pack("<II", 8, 0) + _ids(3, 4)
    for seq, request, ids in ((1, b"W" + _REQUESTS[0], b"W" + _ids(1, 2)), (2, delta, delta_ids)):
        insert(
            "calls",
            seq=seq, id=f"old{seq:029x}", session=1, parent=seq - 1 or None, dialect="chat", path="/v1/chat",
            model="agent", version=0, upstream="http://vllm", streamed=0, outcome="complete", started_at=1.0,
            ended_at=2.0, sampling="{}",
            input='[{"role":"user","content":"one"}]' if seq == 1 else '[{"role":"tool"}]',
            output='[{"role":"assistant","content":"b"}]', tools="[]" if seq == 1 else None, depth=seq - 1,
            request=request, response=_RESPONSES[seq - 1], prompt_ids=ids,
        )  # fmt: skip
        insert("choices", call=seq, number=0, finish="stop", ids=_ids(3), logprobs=struct.pack("f", -0.5))
    insert("groups", id="g", owner="default", scenario="task", split="train", state="ready", created_at=1.0)
    insert("group_members", session=3, group="g")
    insert("outcomes", session=4, outcome="trained", at=1.0)


def _old(folder: Path, last: str) -> None:
    """A database as the version whose last migration is ``last`` left it."""
    conn = sqlite3.connect(str(folder / FILE), isolation_level=None)
    migrations.apply(conn, stop_before=_after(last))

    def insert(table: str, **values: Any) -> None:
        names = ", ".join(f'"{name}"' for name in values)
        conn.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(values))})", tuple(values.values()))

    _fill(insert)
    conn.close()


def _after(last: str) -> str | None:
    names = list(migrations.ALL)
    place = names.index(last) + 1
    return names[place] if place < len(names) else None


@pytest.mark.parametrize("last", ["001_first", "002_tags"])
def test_an_older_database_goes_on(tmp_path: Path, last: str) -> None:
    _old(tmp_path, last)
    recorded = Recorded(tmp_path)
    db = recorded.db
    for seq, ids in ((1, [1, 2]), (2, [1, 2, 3, 4])):
        assert calls.body(db, seq) == _REQUESTS[seq - 1]
        assert calls.body(db, seq, "response") == _RESPONSES[seq - 1]
        assert calls.body(db, seq, "prompt_ids") == _ids(*ids)
    assert [list(call.prompt_ids) for call in calls.of_session(db, SessionKey(1))] == [[1, 2], [1, 2, 3, 4]]
    assert sessions.states(db) == {"closed": 1, "skipped": 1, "grouped": 1, "trained": 1, "open": 1}
    assert sessions.count_skipped(db, sessions.UNTAGGED) == 1
    assert groups.states(db) == {"ready": 1}
    assert db.all("SELECT sampled_by FROM group_members")[0]["sampled_by"] is None, "it has no calls"
    assert [session.key for session in sessions.waiting(db)] == [1]
    assert [call.token_limit for call in calls.of_session(db, SessionKey(1))] == [None, None]
    # A further call of its session continues the old ones.
    recorded.turn(call_start("s1"), [user("one"), assistant("b"), user("three")], "c", capture([1, 2, 3, 9], [5]))
    recorded.take_in()
    (row,) = db.all("SELECT * FROM calls WHERE seq = 3")
    assert (row["parent"], row["continues"]) == (1, 0)
    assert [list(call.prompt_ids) for call in calls.of_session(db, SessionKey(1))][2] == [1, 2, 3, 9]
    assert sessions.get(db, SessionKey(1)).state is SessionState.OPEN
    assert sessions.waiting(db) == []
    recorded.abandon()
