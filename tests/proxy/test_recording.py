"""Promise 2 and what a record holds: exact tokens, bytes, outcomes; nothing is lost by `kill -9`."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from storage.states import CallOutcome
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.conftest import StartProxy
from tests.proxy.running import CHAT, Recorded, RunningProxy, assert_exact, request, tags


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("fault", ["none", "split:1", "split:5"])
def test_tokens_are_recorded_as_vllm_had_them(
    proxy: RunningProxy, recorded: Recorded, stream: bool, n: int, fault: str, sid: str
) -> None:
    body = request("größe 日本", stream=stream, n=n, temperature=0.5)
    answer = raw.ask(proxy.url, CHAT, body, tags(sid, fault, x_agent="planner"))
    (call,) = recorded.calls(sid)
    expected = [f"base-model answers ({i}) “größe 日本” — déjà vu, 日本 😀" for i in range(n)]
    assert_exact(call, [{"role": "user", "content": "größe 日本"}], expected)
    assert (call.outcome, call.not_trainable, call.version) == (CallOutcome.COMPLETE, None, 0)
    assert call.sampling["temperature"] == 0.5
    assert call.sampling["n"] == n
    row = recorded.row(call.seq)
    assert (row["request"], row["response"], row["status"], row["model"]) == (body, answer.body, 200, "agent")
    assert row["agent"] == "planner"
    assert row["streamed"] == stream
    assert row["started_at"] <= row["first_byte_at"] <= row["ended_at"]
    assert answer.all(b"x-call-id") == [call.id.encode()]


def test_a_conversation_is_a_chain_whose_ids_grow(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    messages: list[dict[str, Any]] = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"turn {turn}"})
        answer = proxy.chat(messages=messages, headers=tags(sid))
        messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
    first, second, third = recorded.calls(sid, 3)
    parents = [recorded.row(call.seq)["parent"] for call in (first, second, third)]
    assert parents == [None, first.seq, second.seq]
    for earlier, later in itertools.pairwise((first, second, third)):
        before = earlier.prompt_ids + earlier.choices[0].ids
        assert later.prompt_ids[: len(before)] == before


OUTCOMES = [
    ("bad-request", 400, CallOutcome.UPSTREAM_ERROR, "vLLM answered with status 400"),
    ("rate-limit", 429, CallOutcome.UPSTREAM_ERROR, "vLLM answered with status 429"),
    ("bad-gateway", 502, CallOutcome.UPSTREAM_ERROR, "vLLM answered with status 502"),
    ("error-frame", 200, CallOutcome.TRUNCATED, "vLLM broke the stream off with an error frame"),
    ("no-done", 200, CallOutcome.TRUNCATED, "the stream ended without its last frame"),
    ("empty", 200, CallOutcome.TRUNCATED, "the stream ended without its last frame"),
    ("quote", 200, CallOutcome.COMPLETE, None),
    ("cut-done:8", 200, CallOutcome.COMPLETE, None),
    ("crlf", 200, CallOutcome.COMPLETE, None),
    ("huge", 200, CallOutcome.COMPLETE, None),
]


@pytest.mark.parametrize(("fault", "status", "outcome", "error"), OUTCOMES, ids=[fault for fault, *_ in OUTCOMES])
def test_a_call_is_recorded_as_what_it_was(
    proxy: RunningProxy, recorded: Recorded, fault: str, status: int, outcome: CallOutcome, error: str | None, sid: str
) -> None:
    answer = raw.ask(proxy.url, CHAT, request(stream=True), tags(sid, fault))
    (call,) = recorded.calls(sid)
    row = recorded.row(call.seq)
    assert (row["status"], call.outcome, row["error"]) == (status, outcome, error)
    assert (call.not_trainable is None) == (outcome is CallOutcome.COMPLETE)
    assert row["response"] == answer.body


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_reset_in_the_body_is_truncated(proxy: RunningProxy, recorded: Recorded, stream: bool, sid: str) -> None:
    answer = raw.ask(proxy.url, CHAT, request(stream=stream), tags(sid, "reset-body"))
    (call,) = recorded.calls(sid)
    assert call.outcome is CallOutcome.TRUNCATED
    assert recorded.row(call.seq)["error"].startswith("the response broke off: ")
    assert recorded.row(call.seq)["response"].startswith(answer.body)


def test_a_reset_before_the_head_is_told_and_recorded(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    answer = proxy.chat(headers=tags(sid, "reset-head"))
    assert answer.status_code == 502
    assert answer.json()["error"]["message"].endswith("does not answer: [Errno 104] Connection reset by peer")
    (call,) = recorded.calls(sid)
    assert (call.outcome, recorded.row(call.seq)["status"]) == (CallOutcome.UPSTREAM_ERROR, None)


def test_a_wrong_model_is_vllms_404_and_recorded(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    answer = proxy.chat(model="gpt-4o", headers=tags(sid))
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith("The model `gpt-4o` does not exist.")
    (call,) = recorded.calls(sid)
    assert recorded.row(call.seq)["model"] == "gpt-4o"
    assert "x-policy-version" not in answer.headers


def test_a_client_that_leaves_when_all_is_said_takes_nothing_away(
    fake: FakeVllm, proxy: RunningProxy, recorded: Recorded, sid: str
) -> None:
    with raw.connect(proxy.url) as connection:
        raw.send(connection, CHAT, request(stream=True), tags(sid, "linger"))
        raw.read_until(connection, b'"finish_reason":"stop"')
    (call,) = recorded.calls(sid)
    assert (call.outcome, call.not_trainable) == (CallOutcome.COMPLETE, None)
    assert call.choices[0].finish == "stop"
    assert recorded.row(call.seq)["response"].endswith(b"data: [DONE]\n\n")
    assert not fake.calls()[0].cancelled.is_set()


def test_our_own_fault_is_recorded_as_one(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    answer = raw.ask(proxy.url, CHAT, request(stream=True), tags(sid, "bad-frame"))
    assert not answer.whole
    (call,) = recorded.calls(sid)
    assert call.outcome is CallOutcome.TRUNCATED
    assert call.not_trainable == "the proxy failed: ValueError: a capture frame has no length"


def test_a_proxy_that_stops_says_so(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    recorded = Recorded(proxy.data)
    with raw.connect(proxy.url) as connection:
        raw.send(connection, CHAT, request(stream=True), tags("s", "stall:2", x_session_end="true"))
        raw.read_until(connection, b'"content":"base-mo"')
        proxy.stop()
    (call,) = recorded.calls("s")
    assert (call.outcome, call.not_trainable) == (CallOutcome.INTERRUPTED, "the proxy stopped during this call")
    assert recorded.closed("s") is None
    recorded.db.close()


def test_parallel_sessions_are_kept_apart(proxy: RunningProxy, recorded: Recorded) -> None:
    def talk(number: int) -> None:
        for turn in range(3):
            headers = {"x-session-id": f"s{number}", "x-scenario-id": "c"}
            assert proxy.chat(f"session {number}, turn {turn}", stream=number % 2 == 0, headers=headers).is_success

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(talk, range(16)))
    for number in range(16):
        found = [recorded.row(call.seq)["request"] for call in recorded.calls(f"s{number}", 3)]
        assert found == [request(f"session {number}, turn {turn}", stream=number % 2 == 0) for turn in range(3)]
