"""What a request may not exceed: a clear 4xx, vLLM sees nothing of it, and the proxy goes on."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.documents import parse
from proxy.errors import BadRequest, TooManyCalls
from proxy.limits import DEPTH, HEADER_BYTES, Limits
from proxy.settings import LimitSettings
from storage.types import Owner
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.conftest import StartProxy
from tests.proxy.running import ADMIN_KEY, CHAT, DIALECTS, RunningProxy, request, tags, until

CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n"
CHUNKED += b"content-type: application/json\r\n\r\n"
LIMITS = Limits(LimitSettings(body=1, n=128, calls=2))


def nested(levels: int, opening: str = "[", closing: str = "]") -> bytes:
    """A chat request that is ``levels`` deep."""
    value = opening * (levels - 1) + closing * (levels - 1)
    return b'{"model": "agent", "messages": [{"role": "user", "content": "x"}], "extra": ' + value.encode() + b"}"


@pytest.mark.parametrize("levels", [1, 2, 100, DEPTH])
def test_nesting_up_to_the_limit_passes_untouched(proxy: RunningProxy, fake: FakeVllm, levels: int) -> None:
    body = nested(levels) if levels > 1 else request()
    assert proxy.client.post(CHAT, content=body).status_code == 200
    assert fake.calls()[-1].body == body


@pytest.mark.parametrize("levels", [DEPTH + 1, 250, 260, 900, 1030, 100_000, 1_000_000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}"), ("[[{}],", "]"), ("[", "")])
def test_deeper_nesting_is_refused_and_nothing_breaks(
    proxy: RunningProxy, fake: FakeVllm, levels: int, brackets: tuple[str, str]
) -> None:
    answer = proxy.client.post(CHAT, content=nested(levels, *brackets))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"the JSON is nested more than {DEPTH} levels deep"
    assert fake.calls() == []
    assert proxy.chat().status_code == 200


ODD = [
    b'{"model": "agent", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b'{"model": "agent", "messages": [{"role": "user", "content": "x"}], "n": 1, "n": 1}',
    b'{"model": "agent", "messages": [{"role": "user", "content": "x"}], "a": ' + b"9" * 5000 + b"}",
    b'{"model": "agent", "messages": [{"role": "user", "content": "x"}], "a": -1e999, "b": Infinity}',
    b'{"model": "agent", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "agent", "messages": [{"role": "user", "content": "\xff"}]}',
    b'{"model": "agent", "messages": [{"role": "user", "content": "' + b"[{" * 500 + b'"}]}',
    b'{"model": "agent", "messages": [{"role": "user", "content": "\\"' + b"[{" * 500 + b'\xff"}]}',
    b"[" + b"[]," * 5000 + b"[]]",
    b'{"n": "many", "model": {}}',
    b'{"n": true}',
    b'{"n": null, "best_of": 1.5}',
    b"[[[",
    b"{",
    b"",
    b"null",
    b"--boundary\r\n\r\n" + b"[" * 1000 + b"\r\n--boundary--",
]


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_what_is_odd_and_within_the_limits_is_vllms_to_judge(proxy: RunningProxy, fake: FakeVllm, body: bytes) -> None:
    proxy.client.post(CHAT, content=body)
    (received,) = fake.calls()
    assert received.body == body


@pytest.mark.parametrize(
    "body",
    [
        b'{"n": 129}',
        b'{"n": 129.0}',
        b'{"n": " 1_000"}',
        b'{"n": 999999999999999999999}',
        b'{"n": NaN, "best_of": ' + b"9" * 4000 + b"}",
        b'{"best_of": 129, "n": 1}',
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/session/s/v1/completions"])
def test_more_choices_than_the_limit_are_refused(proxy: RunningProxy, fake: FakeVllm, path: str, body: bytes) -> None:
    answer = proxy.client.post(path, content=body)
    assert answer.status_code == 400
    assert "it can be at most 128 ([limit] n)" in answer.json()["error"]["message"]
    assert fake.calls() == fake.calls("/v1/completions") == []


def test_as_many_choices_as_the_limit_pass(proxy: RunningProxy, fake: FakeVllm) -> None:
    assert proxy.chat(n=128).status_code == 200


def test_a_body_may_have_as_many_bytes_as_the_setting_says(start_proxy: StartProxy, own_fake: FakeVllm) -> None:
    proxy = start_proxy(limit={"body": 1})
    small = request()
    fits = small + b" " * (2**20 - len(small))
    assert proxy.client.post(CHAT, content=fits).status_code == 200

    def chunks() -> Any:
        yield fits
        yield b" "

    # With its length in the head it is refused before it comes; without, where it grows too large.
    for content in (fits + b" ", chunks()):
        answer = proxy.client.post(CHAT, content=content)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            413,
            "the request's body is larger than 1 MiB",
        )
    assert len(own_fake.calls()) == 1
    with raw.connect(proxy.url) as connection:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: a\r\nx-api-key: k\r\ncontent-length: 99999999999999999999\r\n\r\n"
        connection.sendall(head)
        answer_bytes = connection.recv(65536)
    assert answer_bytes.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    for path in ("/v1/sessions/s/reward", "/admin/train", "/admin/keys"):
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        assert 400 <= proxy.client.post(path, content=fits + b" ", headers=headers).status_code < 500
    assert proxy.chat().status_code == 200


def test_headers_have_a_limit(proxy: RunningProxy, fake: FakeVllm) -> None:
    many = {f"x-filler-{number}": "y" * 1000 for number in range(HEADER_BYTES // 1000 + 1)}
    for headers in ({"x-filler": "y" * HEADER_BYTES}, many):
        answer = proxy.chat(headers=headers)
        assert answer.status_code == 431
        assert answer.json()["error"]["message"].endswith(f"they can have {HEADER_BYTES}")
    assert fake.calls() == []
    assert proxy.chat(headers={"x-filler": "y" * (HEADER_BYTES - 1000)}).status_code == 200


def test_calls_under_way_of_one_key_have_a_limit(start_proxy: StartProxy, own_fake: FakeVllm) -> None:
    proxy = start_proxy(limit={"calls": 2})
    keys = [proxy.admin("keys", "POST", json={"name": name})["key"] for name in ("ann", "bob")]
    ann, bob = ({"authorization": f"Bearer {key}"} for key in keys)
    held = [raw.connect(proxy.url) for _ in range(2)]
    for connection in held:
        raw.send(connection, CHAT, request(), {**tags("s", "slow:600"), **ann})
    until(lambda: len(own_fake.calls()) == 2)
    text = (
        "2 calls of this client key under way, as many as it may have ([limit] calls): "
        "repeat this one when another has ended"
    )
    openai = {"error": {"message": text, "type": "rate_limit_error", "param": None, "code": 429}}
    anthropic = {"type": "error", "error": {"type": "rate_limit_error", "message": text}}
    seen = len(own_fake.requests)
    for path, body in DIALECTS.items():
        refused = proxy.client.post(path, json={"model": "agent", **body}, headers=ann)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json() == (anthropic if "messages" in path else openai)
    assert {request.path for request in own_fake.requests[seen:]} <= {"/v1/models"}, "vLLM sees none of them"
    assert proxy.chat(headers=bob).status_code == 200, "another key has a count of its own"
    # A client that leaves gives its place back, as a call that ends does.
    held[0].close()
    until(lambda: proxy.chat(headers=ann).status_code == 200)
    for _ in range(5):
        assert proxy.chat(headers=ann).status_code == 200
    held[1].close()


def test_a_place_is_given_back_however_a_call_ends() -> None:
    ann, bob = Owner("ann"), Owner("bob")
    with LIMITS.under_way(ann), LIMITS.under_way(bob):
        with LIMITS.under_way(ann), pytest.raises(TooManyCalls), LIMITS.under_way(ann):
            pass
        with pytest.raises(KeyError), LIMITS.under_way(ann):
            raise KeyError
        with LIMITS.under_way(ann):
            pass


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda some: st.lists(some) | st.dictionaries(st.text(), some)
)


@given(_JSON, st.integers(0, 400), st.booleans())
def test_depth_is_counted_the_same_with_and_without_a_parser(value: Any, levels: int, objects: bool) -> None:
    opening, closing = ('{"[{": ', "}") if objects else ("[1, ", "]")
    text = (opening * levels + json.dumps(value) + closing * levels).encode()
    too_deep = levels + _depth(value) > DEPTH
    for document in {0: parse(text), 1: None}.values():
        if too_deep:
            with pytest.raises(BadRequest, match="nested"):
                LIMITS.check_request(text, document)
        else:
            LIMITS.check_request(text, document)


@given(st.binary())
def test_bytes_of_any_kind_are_looked_at_without_harm(body: bytes) -> None:
    LIMITS.check_request(body, parse(body))
    LIMITS.check_request(b"[" * 100 + body, None)


def _depth(value: Any) -> int:
    items = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(map(_depth, items), default=0) if isinstance(value, dict | list) else 0


ENDLESS = {
    "target": (b"POST /v1/chat/completions?", b"a" * 1000),
    "name of a header": (b"POST /v1/chat/completions HTTP/1.1\r\n", b"a" * 1000),
    "value of a header": (b"POST /v1/chat/completions HTTP/1.1\r\nx-a: ", b"a" * 1000),
    "headers": (b"POST /v1/chat/completions HTTP/1.1\r\n", b"x-a: 1\r\n" * 100),
    "lines before a request": (b"", b"\r\n" * 500),
    "chunk extension": (CHUNKED + b"2;", b"a" * 1000),
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"x-a: 1\r\n" * 100),
}


def push(connection: socket.socket, data: bytes, times: int) -> None:
    for _ in range(times):
        connection.sendall(data)


@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_is_cut_off_before_it_fills_the_memory(proxy: RunningProxy, fake: FakeVllm, name: str) -> None:
    first, more = ENDLESS[name]
    with raw.connect(proxy.url) as connection:
        connection.settimeout(30)
        connection.sendall(first)
        with pytest.raises(ConnectionError):
            push(connection, more, 50_000)  # 50 MB
    assert fake.calls() == []
    assert proxy.chat().status_code == 200


def test_a_head_that_is_too_long_is_told(proxy: RunningProxy) -> None:
    with raw.connect(proxy.url) as connection:
        connection.sendall(b"GET /v1/models?" + b"a" * 5 * HEADER_BYTES)
        answer = raw.parse(raw.read_all(connection))
    assert (answer.status, answer.whole) == (431, True)
    assert b"the head of the request is longer than 262144 bytes" in answer.body


def test_trailers_are_no_headers(proxy: RunningProxy, fake: FakeVllm) -> None:
    body = request()
    with raw.connect(proxy.url) as connection:
        connection.sendall(CHUNKED + b"%x\r\n%b\r\n0\r\nx-session-id: sly\r\nx-sly: 1\r\n\r\n" % (len(body), body))
        head = raw.read_until(connection, b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"sly" not in head
    assert fake.calls()[-1].header("x-sly") is None


def test_a_client_that_asks_on_and_on_without_reading_is_cut_off(proxy: RunningProxy) -> None:
    with raw.connect(proxy.url) as connection:
        connection.settimeout(30)
        with pytest.raises(ConnectionError):
            push(connection, b"GET /v1/models HTTP/1.1\r\nhost: here\r\n\r\n" * 1000, 10_000)
    assert proxy.chat().status_code == 200


@pytest.mark.parametrize("body", [b"[" * 50_000_000, b"[" + b"[]," * 8_000_000])
def test_brackets_are_not_counted_one_by_one(body: bytes) -> None:
    """By the trace of the lines that run, for no clock is the same everywhere."""
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        with contextlib.suppress(BadRequest):
            LIMITS.check_request(body, None)
    finally:
        sys.settrace(None)
    assert lines < 10_000
