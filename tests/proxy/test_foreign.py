"""A vLLM without Slipstream's plugin: served as without us, recorded with what it tells, trained on where exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from proxy.capture import HEADER
from proxy.foreign import NO_IDS
from proxy.settings import SamplingSettings
from storage.samplings import why_recomputed
from storage.types import Call
from tests.fake_vllm import FakeVllm, tokens
from tests.fake_vllm.engine import logprobs
from tests.fake_vllm.server import SECRET
from tests.proxy import raw
from tests.proxy.adapters import Trainer
from tests.proxy.running import CHAT, STATED, Recorded, RunningProxy, assert_exact, request, tags, until

COMPLETIONS = "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("search", "größe")]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeVllm, RunningProxy]]:
    with FakeVllm(secret=None) as fake:
        proxy = RunningProxy(tmp_path_factory.mktemp("foreign") / "data", (fake.url,), SECRET)
        yield fake, proxy
        proxy.stop()


@pytest.fixture
def vllm(foreign: tuple[FakeVllm, RunningProxy]) -> FakeVllm:
    foreign[0].requests.clear()
    return foreign[0]


@pytest.fixture
def proxy(foreign: tuple[FakeVllm, RunningProxy]) -> RunningProxy:
    return foreign[1]


def recorded_call(proxy: RunningProxy, session: str) -> Call:
    recorded = Recorded(proxy.data)
    try:
        return recorded.calls(session)[0]
    finally:
        recorded.db.close()


def anonymous(body: bytes) -> list[Any]:
    """The frames, or the one document, without ids, which are made from the request's bytes."""
    frames = body.split(b"\n\n")
    documents = [orjson.loads(f.partition(b"data: ")[2] or f) for f in frames if f and not f.endswith(b"[DONE]")]
    return [{**one, "id": ""} for one in documents]


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {}),
    "three": (CHAT, {"n": 3}),
    "tools": (CHAT, {"tools": TOOLS}),
    "cut off": (CHAT, {"max_tokens": 5}),
    "own logprobs": (CHAT, {"logprobs": True, "top_logprobs": 2}),
    "own ids": (CHAT, {"return_token_ids": True}),
    "both": (CHAT, {"return_token_ids": True, "logprobs": True}),
    "nothing of both": (CHAT, {"return_token_ids": False, "logprobs": None, "top_logprobs": 0}),
    "usage": (CHAT, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "completion": (COMPLETIONS, {"prompt": "wie groß ist 日本?"}),
    "prompts": (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}),
    "ids": (COMPLETIONS, {"prompt": [65, 66, 67]}),
    "completion's own logprobs": (COMPLETIONS, {"prompt": "a", "logprobs": 1}),
    "echo": (COMPLETIONS, {"prompt": "abc", "echo": True}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("model", ["base-model", "agent"])
def test_the_client_gets_what_vllm_alone_would_have_sent(
    vllm: FakeVllm, proxy: RunningProxy, name: str, stream: bool, model: str
) -> None:
    path, options = CALLS[name]
    options = {"messages": [{"role": "user", "content": "wie groß ist 日本?"}], **options, "stream": stream}
    if not stream:
        options.pop("stream_options", None)
    direct = raw.ask(vllm.url, path, orjson.dumps({"model": "base-model", **options}))
    through = raw.ask(proxy.url, path, orjson.dumps({"model": model, **options}), {"x-session-id": f"{name} {stream}"})
    assert direct.status == through.status == 200
    assert through.whole
    assert anonymous(through.body) == [{**part, "model": model} for part in anonymous(direct.body)]
    # Ids apart, byte for byte: what is no number of a length of its own is as long as it was.
    assert len(through.body) - len(direct.body) == (len(model) - len("base-model")) * len(anonymous(direct.body))
    if not stream:
        assert through.foreign == [
            (k, b"%d" % len(through.body) if k == b"content-length" else v) for k, v in direct.foreign
        ]


def test_nothing_but_what_is_needed_changes_in_the_request(vllm: FakeVllm, proxy: RunningProxy) -> None:
    body = b'{ "model" : "agent",\n "messages": [{"role":"user","content":"\\u00e9 x"}], "top_p": 0.50 , "zebra": 1e2 }'
    assert proxy.client.post(CHAT, content=body).status_code == 200
    assert vllm.calls()[0].body == (
        b'{ "model" : "base-model",\n "messages": [{"role":"user","content":"\\u00e9 x"}], "top_p": 0.50 , "zebra": 1e2'
        b',"return_token_ids":true,"logprobs":true,"top_logprobs":0 }'
    )


def test_the_secret_goes_no_further_than_the_look_at_the_models(vllm: FakeVllm, proxy: RunningProxy) -> None:
    proxy.chat()
    proxy.client.post("/v1/embeddings", json={"model": "agent", "input": "x"})
    assert {one.path for one in vllm.requests if one.header(HEADER)} <= {"/v1/models"}
    assert len(vllm.calls()) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("n", [1, 3])
def test_the_tokens_are_those_that_vllm_told(proxy: RunningProxy, stream: bool, n: int) -> None:
    session = f"exact {stream} {n}"
    proxy.chat(headers=tags(session), stream=stream, n=n, **STATED)
    call = recorded_call(proxy, session)
    answers = [f"base-model answers ({i}) “hello” — déjà vu, 日本 😀" for i in range(n)]
    assert_exact(call, [{"role": "user", "content": "hello"}], answers)
    assert call.not_trainable is None
    assert {name: call.sampling[name] for name in STATED} == STATED


def test_text_completions_are_exact_too(proxy: RunningProxy) -> None:
    body = {"model": "agent", "prompt": "abc", "n": 2, **STATED}
    proxy.client.post(COMPLETIONS, json=body, headers=tags("text"))
    call = recorded_call(proxy, "text")
    assert call.not_trainable is None
    assert list(call.prompt_ids) == tokens.encode("abc")
    assert [choice.index for choice in call.choices] == [0, 1]
    for choice in call.choices:
        whole = [*call.prompt_ids, *choice.ids]
        assert list(choice.logprobs) == logprobs(b"the base model", whole)[len(call.prompt_ids) :]


INEXACT: dict[str, tuple[dict[str, Any], str]] = {
    "nothing stated": ({}, "the request leaves temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty"),
    "one left out": ({**STATED, "repetition_penalty": None}, "the request leaves repetition_penalty to vLLM"),
    "no number": ({**STATED, "top_p": "1"}, "the request leaves top_p to vLLM"),
    "warm": ({**STATED, "temperature": 0.7}, "whether its logprobs are those after temperature"),
    "cut": ({**STATED, "top_k": 5}, "whether its logprobs are those after temperature"),
    "tools": ({**STATED, "tools": TOOLS}, "whether it held the tool calls to a grammar"),
}


@pytest.mark.parametrize("name", INEXACT)
def test_what_is_not_exact_is_kept_and_recomputed(proxy: RunningProxy, name: str) -> None:
    options, reason = INEXACT[name]
    proxy.chat(headers=tags(f"inexact {name}"), **options)
    call = recorded_call(proxy, f"inexact {name}")
    assert call.not_trainable is None
    assert reason in (why_recomputed(call.sampling) or "")
    assert list(call.prompt_ids) == tokens.prompt([{"role": "user", "content": "hello"}])
    assert len(call.choices[0].ids) == len(call.choices[0].logprobs) > 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"use_beam_search": True, "n": 2}, "beam search"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        "multimodal prompt",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_on_is_not_asked_for(vllm: FakeVllm, proxy: RunningProxy, name: str) -> None:
    options, reason = REFUSED[name]
    assert proxy.chat(headers=tags(f"refused {name}"), **options).status_code == 200
    call = recorded_call(proxy, f"refused {name}")
    assert (call.not_trainable or "").startswith(reason)
    assert b"return_token_ids" not in vllm.calls()[0].body


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 400}),
    ],
)
def test_other_dialects_are_recorded_without_tokens(
    vllm: FakeVllm, proxy: RunningProxy, path: str, options: dict[str, Any], stream: bool
) -> None:
    session = f"{path} {stream}"
    body = {"model": "agent", "stream": stream, **options}
    answer = proxy.client.post(path, json=body, headers=tags(session))
    assert answer.status_code == 200
    assert answer.content.count(b'"model":"agent"') == answer.content.count(b'"model":') > 0
    call = recorded_call(proxy, session)
    assert (call.outcome, call.not_trainable, call.choices) == ("complete", NO_IDS, ())
    assert orjson.loads(vllm.calls(path)[0].body) == {**body, "model": "base-model"}


def test_calls_without_tokens_are_answered_under_the_clients_name(vllm: FakeVllm, proxy: RunningProxy) -> None:
    answer = proxy.client.post("/v1/embeddings", json={"model": "agent", "input": "x"})
    assert (answer.status_code, answer.json()["model"]) == (200, "agent")
    assert orjson.loads(vllm.calls("/v1/embeddings")[0].body)["model"] == "base-model"


FAULTS = [
    "bad-request",
    "rate-limit",
    "bad-gateway",
    "error-frame",
    "no-done",
    "empty",
    "heartbeat",
    "crlf",
    "reset-body",
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_faults_reach_the_client_and_are_no_trainable_calls(
    vllm: FakeVllm, proxy: RunningProxy, fault: str, stream: bool
) -> None:
    session = f"{fault} {stream}"
    body = request("hello", "base-model", stream=stream, **STATED)
    direct = raw.ask(vllm.url, CHAT, body, {"x-fake-fault": fault})
    through = raw.ask(proxy.url, CHAT, body, {"x-fake-fault": fault, "x-session-id": session})
    assert (through.status, through.whole) == (direct.status, direct.whole)
    call = recorded_call(proxy, session)
    if fault == "reset-body":
        assert call.outcome == "truncated"
        return
    if direct.status != 200 or (stream and fault in ("error-frame", "no-done", "empty")):
        assert call.outcome in ("upstream_error", "truncated")
        assert call.not_trainable
    else:
        assert (call.outcome, call.not_trainable) == ("complete", None)
    if direct.status != 200:
        assert through.body == direct.body
    elif stream:
        assert through.body.count(b"data: ") == direct.body.count(b"data: ")
        assert through.body.count(b": keep-alive") == direct.body.count(b": keep-alive")


def test_a_client_that_leaves_stops_vllm(vllm: FakeVllm, proxy: RunningProxy) -> None:
    body = request("hello", stream=True)
    with raw.connect(proxy.url) as connection:
        raw.send(connection, CHAT, body, {"x-fake-fault": "stall:3", "x-session-id": "gone"})
        assert connection.recv(100)
        until(lambda: len(vllm.calls()) == 1)
    assert vllm.calls()[0].cancelled.wait(60)
    assert recorded_call(proxy, "gone").outcome == "client_gone"


@pytest.mark.parametrize("secret", [None, "another-secret"], ids=["no plugin", "another secret"])
def test_it_is_told_and_adapters_are_loaded_and_probed_all_the_same(
    tmp_path_factory: pytest.TempPathFactory, secret: str | None
) -> None:
    data = tmp_path_factory.mktemp("told") / "data"
    with FakeVllm(secret=secret) as fake:
        proxy = RunningProxy(data, (fake.url,), SECRET)
        try:
            told = f"{fake.url}: vLLM runs without Slipstream's plugin, or with another SLIPSTREAM_PLUGIN_SECRET"
            status = proxy.status()
            assert any(problem.startswith(told) for problem in status["degraded"])
            assert (status["upstreams"][0]["plugin"], status["upstreams"][0]["problem"]) == (False, None)
            assert proxy.client.get("/ready").status_code == 200
            Trainer(data).train(1)
            until(lambda: proxy.status()["live"] == "policy@1")
            answer = proxy.chat(headers=tags("s"))
            assert answer.headers["x-policy-version"] == "policy@1"
            assert answer.json()["model"] == "agent"
            assert answer.json()["choices"][0]["message"]["content"].startswith("policy@1 answers")
            probed = {orjson.loads(one.body)["model"] for one in fake.calls(COMPLETIONS)}
            assert probed == {"base-model", "policy@1"}
        finally:
            proxy.stop()


def test_exploration_is_asked_for_in_the_body_and_makes_calls_exact(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("explored") / "data"
    with FakeVllm(secret=None) as fake:
        proxy = RunningProxy(data, (fake.url,), SECRET, sampling=SamplingSettings(mode="explore"))
        try:
            proxy.chat(headers=tags("s"), temperature=0, presence_penalty=0.5)
            proxy.chat(headers=tags("plain"), temperature=0)
            proxy.chat(headers=tags("eval", x_split="eval"), temperature=0)
            sent = [orjson.loads(one.body) for one in fake.calls()]
            call, plain = recorded_call(proxy, "s"), recorded_call(proxy, "plain")
        finally:
            proxy.stop()
    assert {name: sent[0][name] for name in STATED} == {**STATED, "presence_penalty": 0.5}
    assert call.sampling["presence_penalty"] == 0.5
    assert plain.not_trainable is None
    assert {name: plain.sampling[name] for name in STATED} == STATED
    assert sent[2]["temperature"] == 0
    assert "top_p" not in sent[2]
