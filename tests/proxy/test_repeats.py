"""Repeated calls: an answer that nobody read is given again, once, to the call that asks for it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from proxy.repeats import Answer, Repeats, is_repeated, key_of
from storage.states import CallOutcome
from storage.types import DEFAULT_OWNER, CallId, Identity
from tests.fake_vllm import FakeVllm, faults
from tests.proxy import raw
from tests.proxy.running import CHAT, Recorded, RunningProxy, request, tags, until

AGAIN = {"x-stainless-retry-count": "1"}


def _leave(proxy: RunningProxy, fake: FakeVllm, body: bytes, fault: str, sid: str, *, finished: bool) -> None:
    """A client that goes away in the middle of its stream, or when only its end is missing."""
    asked = len(fake.calls())
    with raw.connect(proxy.url) as connection:
        raw.send(connection, CHAT, body, tags(sid, fault))
        until(lambda: len(fake.calls()) > asked)
        raw.read_until(connection, b'"finish_reason":"stop"' if finished else b'"content":"base-mo"')


def test_an_answer_that_nobody_read_is_given_again_once(
    fake: FakeVllm, proxy: RunningProxy, recorded: Recorded, sid: str
) -> None:
    body = request("tell me", stream=True)
    _leave(proxy, fake, body, "linger", sid, finished=True)
    given = raw.ask(proxy.url, CHAT, body, tags(sid) | AGAIN)
    (call,) = recorded.calls(sid)
    assert (given.status, given.whole) == (200, True)
    assert given.body == recorded.row(call.seq)["response"]
    assert given.all(b"x-call-id") == [call.id.encode()]
    assert given.all(b"content-type") == [b"text/event-stream; charset=utf-8"]
    assert len(fake.calls()) == 1
    # Once: the next repetition is a call of its own, and takes nobody's place.
    raw.ask(proxy.url, CHAT, body, tags(sid) | AGAIN)
    assert [call.outcome for call in recorded.calls(sid, 2)] == [CallOutcome.COMPLETE] * 2
    assert len(fake.calls()) == 2


def test_a_repetition_that_is_left_as_well_leaves_the_answer_for_the_next(
    fake: FakeVllm, proxy: RunningProxy, recorded: Recorded, sid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_LINGER_SECONDS", 5)  # before the answer is whole
    body = request("tell me", stream=True)
    _leave(proxy, fake, body, "linger", sid, finished=True)
    with raw.connect(proxy.url) as connection:
        raw.send(connection, CHAT, body, tags(sid) | AGAIN)
        time.sleep(0.5)  # it waits for the answer
    time.sleep(0.5)  # it is known to be gone
    (call,) = recorded.calls(sid)
    given = raw.ask(proxy.url, CHAT, body, tags(sid) | AGAIN)
    assert given.all(b"x-call-id") == [call.id.encode()]
    assert given.body == recorded.row(call.seq)["response"]
    assert len(fake.calls()) == 1


async def test_nobody_waits_for_an_answer_and_it_is_there_for_the_next() -> None:
    repeats = Repeats()
    left = repeats.leave(b"key", CallId("call"))
    finding = asyncio.create_task(repeats.find(b"key"))
    await asyncio.sleep(0)
    finding.cancel()
    await asyncio.wait({finding})
    answer = Answer(200, [], (b"answer",))
    repeats.settle(left, answer)
    found = await repeats.find(b"key")
    assert found.answer is answer
    assert (await repeats.find(b"key")).answer is None
    repeats.give_back(found)
    assert (await repeats.find(b"key")).answer is answer


def test_a_call_that_was_not_finished_is_superseded(
    fake: FakeVllm, proxy: RunningProxy, recorded: Recorded, sid: str
) -> None:
    body = request("tell me", stream=True)
    _leave(proxy, fake, body, "stall:2", sid, finished=False)
    assert fake.calls()[0].cancelled.wait(60)
    assert raw.ask(proxy.url, CHAT, body, tags(sid) | AGAIN).status == 200
    first, second = recorded.calls(sid, 2)
    assert (first.outcome, first.not_trainable) == (
        CallOutcome.SUPERSEDED,
        "superseded: the client left this call and made it again",
    )
    assert (second.outcome, second.not_trainable) == (CallOutcome.COMPLETE, None)


def _otherwise() -> list[tuple[str, Callable[[bytes, str], tuple[bytes, dict[str, str]]]]]:
    return [
        ("no retry count", lambda body, sid: (body, tags(sid))),
        ("a count of none", lambda body, sid: (body, {**tags(sid), "x-stainless-retry-count": "0"})),
        ("another session", lambda body, sid: (body, {**tags(f"{sid} other"), **AGAIN})),
        ("another body", lambda body, sid: (body + b" ", {**tags(sid), **AGAIN})),
    ]


@pytest.mark.parametrize("change", [change for _, change in _otherwise()], ids=[name for name, _ in _otherwise()])
def test_any_other_call_is_a_call_of_its_own(
    fake: FakeVllm,
    proxy: RunningProxy,
    recorded: Recorded,
    sid: str,
    change: Callable[[bytes, str], tuple[bytes, dict[str, str]]],
) -> None:
    body = request("tell me", stream=True)
    _leave(proxy, fake, body, "linger", sid, finished=True)
    (first,) = recorded.calls(sid)
    other, headers = change(body, sid)
    answer = raw.ask(proxy.url, CHAT, other, headers)
    assert answer.all(b"x-call-id") != [first.id.encode()]
    assert len(fake.calls()) == 2


def test_calls_without_a_session_are_never_given_anothers_answer(fake: FakeVllm, proxy: RunningProxy) -> None:
    body = request("tell me", stream=True)
    with raw.connect(proxy.url) as connection:
        raw.send(connection, CHAT, body, {"x-fake-fault": "linger"})
        raw.read_until(connection, b'"finish_reason":"stop"')
    assert raw.ask(proxy.url, CHAT, body, {**AGAIN}).status == 200
    assert len(fake.calls()) == 2


def test_equal_calls_at_once_each_get_their_own_answer(
    fake: FakeVllm, proxy: RunningProxy, recorded: Recorded, sid: str
) -> None:
    """Of two equal calls one is read to its end, the other is left; its repetition gets the answer that was left."""
    body = request("tell me", stream=True)
    read = raw.ask(proxy.url, CHAT, body, tags(sid))
    _leave(proxy, fake, body, "linger", sid, finished=True)
    _, left = recorded.calls(sid, 2)
    given = raw.ask(proxy.url, CHAT, body, tags(sid) | AGAIN)
    assert given.all(b"x-call-id") == [left.id.encode()] != read.all(b"x-call-id")


@pytest.mark.parametrize(
    ("value", "expected"), [(b"1", True), (b"12", True), (b"0", False), (b"", False), (b"x", False)]
)
def test_what_says_that_a_call_is_repeated(value: bytes, expected: bool) -> None:
    assert is_repeated([(b"x-stainless-retry-count", value)]) is expected
    assert not is_repeated([(b"x-other", value)])


def test_a_key_tells_apart_what_is_not_equal() -> None:
    one = Identity(DEFAULT_OWNER, "s")
    keys = [
        key_of(one, "/v1/chat/completions", b"", b"{}"),
        key_of(Identity(DEFAULT_OWNER, "t"), "/v1/chat/completions", b"", b"{}"),
        key_of(one, "/v1/completions", b"", b"{}"),
        key_of(one, "/v1/chat/completions", b"a=1", b"{}"),
        key_of(one, "/v1/chat/completions", b"", b"{ }"),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("count", "repeated"), [(b"0", False), (b"00", False), (b"1", True), (b"9" * 5000, True)])
def test_a_count_of_any_length_is_read(count: bytes, repeated: bool) -> None:
    assert is_repeated([(b"x-stainless-retry-count", count)]) is repeated
