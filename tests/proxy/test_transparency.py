"""Promise 1 in single cases: tags and added headers apart, a client cannot tell the proxy from vLLM.

Whole requests, generated and spoilt, are compared in `test_differential.py`.
"""

from __future__ import annotations

import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import CHAT, RunningProxy, request


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b'{"model": 7, "messages": []}',
        b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "base-model", "model": "nobody", "messages": [{"role": "user", "content": "twice"}]}',
        b'{"model": "base-model", "messages": [{"role": "user", "content": "\\ud800 \\u0000"}]}',
        b'{"model": "\\ud800", "messages": [{"role": "user", "content": "x"}]}',
        b'{"model": "base-model", "messages": [{"role": "user", "content": "x"}], "n": NaN, "n": 1}',
        b'{"model": "base-model", "big": 123456789012345678901234567890, "messages": [{"role": "user", "content": 1}]}',
        b'{"model": "base-model", "messages": [{"role": "user", "content": "caf\xe9"}]}',
        b'{"model": "base-model", "deep": ' + b"[" * 199 + b"]" * 199 + b"}",
    ],
    ids=range(14),
)
def test_odd_bodies_are_forwarded_as_they_are(fake: FakeVllm, proxy: RunningProxy, body: bytes) -> None:
    direct = raw.ask(fake.url, CHAT, body)
    through = raw.ask(proxy.url, CHAT, body, {"x-session-id": "s"})
    assert (direct.status, direct.body, direct.foreign) == (through.status, through.body, through.foreign)
    assert [call.body for call in fake.calls()] == [body, body]


def test_an_alias_stays_in_the_request_and_in_the_answer(fake: FakeVllm, proxy: RunningProxy) -> None:
    body = request("hello", "agent")
    answer = proxy.client.post(CHAT, content=body)
    assert answer.json()["model"] == "agent"
    assert answer.json()["choices"][0]["message"]["content"].startswith("base-model answers (0) “hello”")
    assert fake.calls()[0].body == body


def test_headers_go_on_without_ours_and_without_secrets(fake: FakeVllm, proxy: RunningProxy) -> None:
    headers: dict[str, str | bytes] = {
        "X-Session-Id": "s",
        "X-Scenario-Id": "c",
        "X-Agent": "a",
        "X-Session-End": "true",
        "X-Split": "eval",
        "X-Slipstream": "made up",
        "Authorization": "Bearer sk-client",
        "Cookie": "id=1",
        "TE": "trailers",
        "Keep-Alive": "timeout=5",
        "Accept-Encoding": "gzip, br",
        "Accept": "text/event-stream",
        "User-Agent": "agent/1",
        "X-Stainless-Retry-Count": "0",
        "X-Text": "größe".encode(),
        "X-Bytes": b"caf\xe9",
        "Content-Type": "application/json; charset=utf-8",
    }
    answer = raw.ask(proxy.url, CHAT + "?a=1&b=%20x", request(), headers)
    assert answer.status == 200
    seen = fake.calls()[0]
    given = ["accept", "user-agent", "x-stainless-retry-count", "x-text", "x-bytes", "content-type"]
    of_the_proxy = ["host", "accept-encoding", "content-length", "x-slipstream"]
    assert sorted(name.decode() for name, _ in seen.headers) == sorted(given + of_the_proxy)
    found = dict(seen.headers)
    assert found[b"x-text"] == "größe".encode()
    assert found[b"x-bytes"] == b"caf\xe9"
    assert found[b"accept-encoding"] == b"identity"
    assert found[b"host"] == b"localhost:%d" % fake.port
    assert found[b"x-slipstream"].startswith((fake.secret or "").encode() + b" ")
    assert seen.query == b"a=1&b=%20x"


def test_our_headers_stand_beside_vllms(proxy: RunningProxy) -> None:
    answer = raw.ask(proxy.url, CHAT, request(), {"x-session-id": "größe"})
    assert answer.all(b"x-session-id") == ["größe".encode()]
    assert answer.all(b"x-policy-version") == [b"policy@0"]
    (call_id,) = answer.all(b"x-call-id")
    assert len(call_id) == 32
    assert answer.all(b"x-slipstream-recorded") == []
    assert answer.all(b"x-slipstream") == []
    assert answer.all(b"content-length") == [str(len(answer.body)).encode()]
    assert answer.all(b"transfer-encoding") == []


def test_cookies_of_one_client_do_not_reach_another(fake: FakeVllm, proxy: RunningProxy) -> None:
    first = raw.ask(proxy.url, CHAT, request(), {"x-fake-fault": "cookies"})
    assert first.all(b"set-cookie") == [b"a=1; Path=/", b"b=2; Path=/"]
    assert raw.ask(proxy.url, CHAT, request()).status == 200
    assert fake.calls()[1].header("cookie") is None


def test_a_large_request_with_expect_continue(fake: FakeVllm, proxy: RunningProxy) -> None:
    body = request(padding="x" * 2_000_000)
    with raw.connect(proxy.url) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\nexpect: 100-continue\r\n"
        connection.sendall(head.encode() + b"content-type: application/json\r\nconnection: close\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        answer = raw.parse(raw.read_all(connection))
    assert answer.status == 200
    assert fake.calls()[0].body == body


def test_a_stream_that_quotes_our_frames_is_not_held_back(proxy: RunningProxy) -> None:
    body = request("hello", stream=True)
    with raw.connect(proxy.url) as connection:
        # The last part that vLLM writes is the second piece of the text.
        raw.send(connection, CHAT, body, {"x-fake-fault": "quote:4"})
        raw.read_until(connection, b'"content":"del ans"')


def test_many_calls_go_over_one_connection(fake: FakeVllm, proxy: RunningProxy) -> None:
    for number in range(5):
        answer = proxy.client.post(CHAT, content=request(f"turn {number}"))
        assert f"turn {number}" in answer.json()["choices"][0]["message"]["content"]
    assert [b"turn %d" % number in call.body for number, call in enumerate(fake.calls())] == [True] * 5


def test_the_openai_sdk_reads_plain_and_streamed_answers(proxy: RunningProxy) -> None:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="any", max_retries=0) as client:
        headers = {"X-Session-Id": "sdk", "X-Scenario-Id": "c"}
        ask: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
        whole = client.chat.completions.create(model="agent", messages=ask, extra_headers=headers)
        stream = client.chat.completions.create(model="agent", messages=ask, stream=True, extra_headers=headers)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content
        assert [model.id for model in client.models.list()] == ["agent", "base-model"]
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="nobody", messages=ask)
        assert "The model `nobody` does not exist." in missing.value.message


def test_models_are_the_aliases_and_what_vllm_serves(fake: FakeVllm, proxy: RunningProxy) -> None:
    listed = orjson.loads(proxy.client.get("/v1/models").content)
    alias = {"id": "agent", "object": "model", "created": 0, "owned_by": "slipstream", "root": "base-model"}
    assert listed == {"object": "list", "data": [alias, *fake.state.cards()]}
