"""What a vLLM tells without Slipstream's plugin, and what is made of it, before real vLLM.

A request without the plugin's mark is answered as if the plugin were not there. Greedy answers are compared with what
the plugin captures of the same call.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from proxy.capture import Exploration
from proxy.foreign import prepare
from tests.captures import unpacked
from tests.e2e.marked_calls import TIMEOUT, Body, Server, captured, chat, mark_of, parse, post

pytestmark = pytest.mark.e2e

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
STATED: Body = {
    "temperature": 0,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
}
CALLS: dict[str, tuple[str, Body]] = {
    "chat": ("chat", chat("Name a colour.", max_tokens=12)),
    "completions": ("completions", {"prompt": "The sky is", "max_tokens": 12}),
    "ids as prompt": ("completions", {"prompt": [504, 6376, 314], "max_tokens": 12}),
    "usage": ("chat", chat("Is fire hot?", stream_options={"include_usage": True, "continuous_usage_stats": True})),
    "stop": ("chat", chat("What is the capital of France?", max_tokens=24, stop=["Paris", "France"])),
    "own logprobs": ("chat", chat("Say hello.", logprobs=True, top_logprobs=2)),
    "own ids": ("chat", chat("Say hello.", return_token_ids=True)),
    "unicode": ("chat", chat("Repeat: 日本 😀 é", max_tokens=16)),
}


def _shape(body: bytes) -> list[Any]:
    """The chunks, or the one object, without what differs between any two calls."""
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    parts = [json.loads(line) for line in lines if line != "[DONE]"] or [json.loads(body)]
    return [{**part, "id": "", "created": 0, "system_fingerprint": None} for part in parts]


async def _foreign(vllm: Server, dialect: str, body: Body, **options: Any) -> tuple[bytes, dict[str, Any]]:
    """The client's bytes and the capture of a call to a vLLM without plugin, in pieces as they come."""
    sent = json.dumps({**body, "model": "gpt-4o"}).encode()
    prepared, capturer = prepare(dialect, sent, json.loads(sent), vllm.model, options.get("exploration"))
    given = b""
    async with httpx.AsyncClient(base_url=vllm.base_url, timeout=TIMEOUT) as client:
        headers = {"content-type": "application/json"}
        async with client.stream("POST", PATHS[dialect], content=prepared, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            assert "x-slipstream" not in response.headers
            async for data in response.aiter_raw():
                given += capturer.feed(data)
    given += capturer.end()
    assert capturer.capture is not None
    return given, unpacked(capturer.capture)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CALLS)
async def test_a_greedy_call_is_captured_as_the_plugin_does_and_answered_as_without_us(
    vllm: Server, name: str, stream: bool
) -> None:
    dialect, body = CALLS[name]
    body = {**body, **STATED, "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    await post(vllm, PATHS[dialect], {**body, "model": vllm.model})  # fills the prefix cache
    plain = await post(vllm, PATHS[dialect], {**body, "model": vllm.model})
    _, expected = await captured(vllm, PATHS[dialect], {**body, "model": "x"}, vllm.model)
    given, capture = await _foreign(vllm, dialect, body)
    shown = [{**part, "model": "gpt-4o"} for part in _shape(plain.body)]
    assert _shape(given) == shown
    assert capture["reason"] is None
    assert capture["prompts"] == expected["prompts"]
    (mine,), (theirs,) = capture["choices"], expected["choices"]
    for key in ("index", "prompt", "ids", "finish", "stop"):
        assert mine[key] == theirs[key], key
    assert mine["logprobs"] == pytest.approx(theirs["logprobs"], abs=0.02)
    told = capture["sampling"]
    assert {key: told[key] for key in STATED} == {key: expected["sampling"][key] for key in STATED}


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_and_prompts_keep_their_places(vllm: Server, stream: bool) -> None:
    body = {"prompt": ["One, two,", "The sky is"], "n": 2, "max_tokens": 5, **STATED, "temperature": 1, "seed": 1}
    _, expected = await captured(vllm, "/v1/completions", {**body, "model": "x", "stream": stream}, vllm.model)
    _, capture = await _foreign(vllm, "completions", {**body, "stream": stream})
    assert capture["prompts"] == expected["prompts"]
    assert [(c["index"], c["prompt"]) for c in capture["choices"]] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert all(len(choice["ids"]) == len(choice["logprobs"]) == 5 for choice in capture["choices"])


async def test_an_explored_call_is_exact_and_its_siblings_differ(vllm: Server) -> None:
    answers = set()
    for _ in range(8):
        given, capture = await _foreign(
            vllm, "chat", chat("Tell me a story.", temperature=0), exploration=Exploration()
        )
        assert (capture["reason"], capture["sampling"]["temperature"]) == (None, 1.0)
        (choice,) = capture["choices"]
        assert len(choice["ids"]) == len(choice["logprobs"]) == 8
        answers.add(tuple(choice["ids"]))
        assert json.loads(given)["model"] == "gpt-4o"
    assert len(answers) >= 7


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("dialect", "path"), [("responses", "/v1/responses"), ("messages", "/v1/messages")])
async def test_other_dialects_are_answered_under_the_name_that_the_client_wrote(
    vllm: Server, dialect: str, path: str, stream: bool
) -> None:
    body = {"model": "gpt-4o", "stream": stream, "temperature": 0}
    body |= {"input": "Hi.", "max_output_tokens": 4} if dialect == "responses" else {}
    body |= {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4} if dialect == "messages" else {}
    sent = json.dumps(body).encode()
    prepared, capturer = prepare(dialect, sent, body, vllm.model, None)
    async with httpx.AsyncClient(base_url=vllm.base_url, timeout=TIMEOUT) as client:
        headers = {"content-type": "application/json"}
        response = await client.post(path, content=prepared, headers=headers)
        marked = parse(await client.post(path, content=sent, headers=headers | mark_of(vllm, vllm.model)))
    assert response.status_code == 200
    given = capturer.feed(response.content) + capturer.end()
    assert capturer.capture is not None
    assert json.loads(capturer.capture)["reason"].startswith("no plugin")
    assert vllm.model.encode() not in given
    assert given.count(b'"gpt-4o"') == marked.body.count(b'"gpt-4o"') > 0
