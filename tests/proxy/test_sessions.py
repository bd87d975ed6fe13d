"""Sessions as an agent's headers make them: tagged or not, ended, idle, opened again, pinned to a version."""

from __future__ import annotations

import re
import time

import pytest

from proxy.admin.context import Context
from storage import groups, sessions
from storage.states import ClosedBy, Outcome, SessionState
from storage.types import GroupId, TaggedBy
from tests.fake_vllm import FakeVllm
from tests.proxy.conftest import StartProxy
from tests.proxy.running import Recorded, RunningProxy, tags, until


def test_a_scenario_that_is_not_given_is_inferred(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    proxy.chat(headers=tags(sid, scenario=None, x_session_end="true"))
    session = until(lambda: recorded.closed(sid))
    assert session.state is SessionState.CLOSED
    assert re.fullmatch(r"auto-[0-9a-f]{12}", session.scenario or "")
    assert (session.session_by, session.scenario_by) == (TaggedBy.HEADER, TaggedBy.INFERRED)


def test_a_session_without_any_scenario_is_skipped_when_it_ends(
    proxy: RunningProxy, recorded: Recorded, sid: str
) -> None:
    """Calls that nobody answers in words have no conversation to infer a scenario from."""
    proxy.client.post("/v1/embeddings", json={"model": "agent", "input": "x"}, headers=tags(sid, scenario=None))
    assert proxy.client.post(f"/v1/sessions/{sid}/end").status_code == 200
    session = until(lambda: recorded.closed(sid))
    assert (session.state, session.reason) == (SessionState.SKIPPED, "no scenario: tag its calls with X-Scenario-Id")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/audio/transcriptions", "/tokenize"])
def test_calls_without_conversation_leave_no_open_sessions(proxy: RunningProxy, recorded: Recorded, path: str) -> None:
    names = [proxy.client.post(path, json={"model": "agent"}).headers["x-session-id"] for _ in range(2)]
    assert names[0] != names[1]
    assert until(lambda: all(map(recorded.closed, names)))
    for session in map(recorded.session, names):
        assert session is not None
        assert (session.state, session.reason, session.calls) == (SessionState.SKIPPED, "untagged", 1)
    context: Context = proxy.app.fastapi.state.context
    assert not {one.session_id for one in context.table._open} & set(names)


def test_session_end_closes_behind_the_call(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    proxy.chat(headers=tags(sid))
    proxy.chat(headers=tags(sid, x_session_end="TRUE"))
    session = until(lambda: recorded.closed(sid))
    assert (session.state, session.closed_by, session.calls, session.scenario) == ("closed", "ended", 2, "c")
    proxy.chat(headers=tags(sid))
    second = until(lambda: recorded.session(sid, 2))
    assert (second.state, second.episode) == (SessionState.OPEN, 2)


@pytest.mark.parametrize("fault", ["bad-gateway", "reset-head", "no-done"])
def test_a_call_that_failed_does_not_end_its_session(
    proxy: RunningProxy, recorded: Recorded, sid: str, fault: str
) -> None:
    proxy.chat(stream=True, headers=tags(sid, fault, x_session_end="true"))
    assert proxy.chat(headers=tags(sid, x_session_end="true")).status_code == 200
    recorded.calls(sid, 2)
    session = until(lambda: recorded.closed(sid))
    assert (session.episode, session.calls, session.closed_by) == (1, 2, ClosedBy.ENDED)


def test_a_database_that_cannot_be_read_stops_no_agent(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    context: Context = proxy.app.fastapi.state.context
    context.table._db.close()
    assert proxy.chat(headers=tags("s")).headers["x-policy-version"] == "policy@0"


def test_an_end_is_kept_when_nobody_can_tell_whether_there_is_such_a_session(start_proxy: StartProxy) -> None:
    proxy = start_proxy(idle=0.05)
    recorded = Recorded(proxy.data)
    proxy.chat(headers=tags("s"))
    until(lambda: recorded.closed("s"))
    context: Context = proxy.app.fastapi.state.context
    context.table._db.close()
    answer = proxy.client.post("/v1/sessions/s/end")
    assert (answer.status_code, answer.json()) == (200, {"session": "s", "state": "closed"})
    until(lambda: (found := recorded.session("s")) and found.closed_by is ClosedBy.ENDED)


def test_the_end_waits_for_calls_under_way(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    with proxy.client.stream(
        "POST",
        "/v1/chat/completions",
        content=b'{"model":"agent","stream":true,"messages":[{"role":"user","content":"x"}]}',
        headers=tags(sid, "stall:2"),
    ) as stream:
        parts = stream.iter_raw()
        assert next(parts)
        proxy.chat(headers=tags(sid, x_session_end="true"))
        recorded.calls(sid)
        time.sleep(0.3)  # longer than the journal's way into the database
        assert recorded.closed(sid) is None
    session = until(lambda: recorded.closed(sid))
    assert (session.calls, session.closed_by) == (2, ClosedBy.ENDED)


def test_the_client_ends_its_session(proxy: RunningProxy, recorded: Recorded) -> None:
    assert proxy.client.post("/v1/sessions/a%2Fb/end").status_code == 404
    proxy.chat(headers=tags("a/b"))
    answer = proxy.client.post("/v1/sessions/a%2Fb/end")
    assert (answer.status_code, answer.json()) == (200, {"session": "a/b", "state": "closed"})
    assert until(lambda: recorded.closed("a/b")).closed_by is ClosedBy.ENDED
    assert proxy.client.post("/v1/sessions/a%2Fb/end").status_code == 200


def test_idle_sessions_close_and_open_again(start_proxy: StartProxy) -> None:
    proxy = start_proxy(idle=0.05)
    recorded = Recorded(proxy.data)
    proxy.chat(headers=tags("s"))
    session = until(lambda: recorded.closed("s"))
    assert session.closed_by is ClosedBy.IDLE
    proxy.chat(headers=tags("s"))
    calls = recorded.calls("s", 2)
    again = until(lambda: recorded.closed("s"))
    assert (again.key, again.episode, again.calls, len(calls)) == (session.key, 1, 2, 2)

    # Claimed by the trainer, it does not open again: the next call is the next episode.
    proxy.chat(headers=tags("t"))
    other = until(lambda: recorded.closed("t"))
    assert groups.claim(recorded.db, GroupId("g"), [again, other], time.time())
    sessions.set_outcome(recorded.db, other.key, Outcome.SKIPPED, "for this test", None, time.time())
    proxy.chat(headers=tags("s"))
    assert until(lambda: recorded.session("s", 2)).key != session.key
    assert [call.session_id for call in [again, other]] == ["s", "t"]
    recorded.db.close()


def test_a_call_under_way_is_not_idle(start_proxy: StartProxy) -> None:
    proxy = start_proxy(idle=0.05)
    recorded = Recorded(proxy.data)
    proxy.chat(headers=tags("s", "slow:1.5"))
    session = until(lambda: recorded.closed("s"))
    (call,) = recorded.calls("s")
    assert session.closed_at is not None
    assert session.closed_at >= recorded.row(call.seq)["ended_at"]
    recorded.db.close()


def test_eval_stays_eval(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    proxy.chat(headers=tags(sid, x_split="eval", x_session_end="true"))
    assert until(lambda: recorded.closed(sid)).split == "eval"


BAD = [
    ({"x-session-id": ""}, "X-Session-Id has 0 characters; it can have 1 to 256"),
    ({"x-session-id": "a" * 257}, "X-Session-Id has 257 characters; it can have 1 to 256"),
    ({"x-scenario-id": "a\tb"}, "X-Scenario-Id holds a character that cannot be printed"),
    ({"x-session-id": "s", "x-split": "test"}, "X-Split is 'test'; it can be train or eval"),
    ({"x-session-id": "s", "x-session-end": "1"}, "X-Session-End is '1'; it can be true or false"),
]


@pytest.mark.parametrize(("headers", "reason"), BAD, ids=range(len(BAD)))
def test_bad_tags_are_refused_with_the_reason(
    fake: FakeVllm, proxy: RunningProxy, headers: dict[str, str], reason: str
) -> None:
    answer = proxy.chat(headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": reason,
        "type": "invalid_request_error",
        "param": None,
        "code": 400,
    }
    assert fake.calls() == []


def test_rewards_come_before_during_and_after(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    def give(value: object, **more: object) -> tuple[int, bool]:
        """Whether the reward waits for its session."""
        answer = proxy.client.post(f"/v1/sessions/{sid}/reward", json={"value": value, **more})
        return answer.status_code, answer.json()["waits"]

    assert give(0.25, reason="early") == (200, True)
    proxy.chat(headers=tags(sid))
    assert give(1) == (200, False)
    proxy.client.post(f"/v1/sessions/{sid}/end")
    assert give(-2.5, name="style") == (200, False)
    found = until(lambda: _rewards(proxy, sid, 3))
    assert [(r["name"], r["source"], r["value"], r["reason"]) for r in found] == [
        ("reward", "client", 0.25, "early"),
        ("reward", "client", 1.0, None),
        ("style", "client", -2.5, None),
    ]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"value": "NaN"}', "value"),
        (b'{"value": 1e999}', "value"),
        (b'{"name": "x"}', "value"),
        (b'{"value": 1, "colour": 2}', "colour"),
        (b"value=1", "body"),
    ],
)
def test_bad_rewards_are_refused(proxy: RunningProxy, body: bytes, where: str, sid: str) -> None:
    answer = proxy.client.post(f"/v1/sessions/{sid}/reward", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{where}: ")


def _rewards(proxy: RunningProxy, sid: str, number: int) -> list[dict[str, object]]:
    answer = proxy.answer(f"sessions/{sid}")
    found: list[dict[str, object]] = answer.json()["rewards"] if answer.is_success else []
    return found if len(found) == number else []
