"""Every form of an answer through the plugin in real vLLM: exact tokens, exploration, and the client's bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.capture import Exploration, request_header
from tests.e2e.marked_calls import NONCE, Answer, Body, Server, captured, chat, post

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOLD: Body = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"way": {"enum": ["north", "south"]}}, "required": ["way"]},
    },
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]},
    },
}
FORMS: dict[str, Body] = {
    "named tool": chat(
        "Look north.", max_tokens=40, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}}
    ),
    "required tool": chat("Look north.", max_tokens=60, tools=[TOOL], tool_choice="required"),
    "json schema": chat("Is water wet?", max_tokens=30, response_format=SCHEMA),
    "regex": chat("How many?", structured_outputs={"regex": "[0-9]{3}"}),
    "three": chat("Name a colour.", n=3, temperature=1.0, seed=5),
    "stop string": chat("What is the capital of France?", max_tokens=24, stop=["Paris", "France"]),
    "stop in output": chat("What is water?", max_tokens=24, stop=[" a"], include_stop_str_in_output=True),
    "prompt logprobs": chat("Say hello.", prompt_logprobs=0),
    "running usage": chat("Say hello.", stream_options={"include_usage": True, "continuous_usage_stats": True}),
    "no answer at all": chat("Say hello.", max_tokens=1),
}
GRAMMARS = {"named tool", "required tool", "json schema", "regex"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
async def test_a_form_of_chat_is_captured_as_vllm_tells_it(vllm: Server, form: str, stream: bool) -> None:
    body: Body = {"temperature": 0.8, **FORMS[form], "stream": stream, **TOLD}
    if not stream:
        body.pop("stream_options", None)
    if stream:
        body.pop("prompt_logprobs", None)
    answer, capture = await captured(vllm, CHAT, body, vllm.model)
    assert capture["reason"] is None
    assert capture["sampling"]["structured"] is (form in GRAMMARS)
    assert capture["prompts"] == [answer.parts()[0]["prompt_token_ids"]]
    assert len(capture["choices"]) == body.get("n", 1)
    for mine in capture["choices"]:
        theirs = answer.choices(mine["index"])
        assert mine["ids"] == [token for part in theirs for token in part.get("token_ids") or []]
        told = [token for part in theirs if part["logprobs"] for token in part["logprobs"]["content"]]
        assert mine["logprobs"] == [token["logprob"] for token in told]
        assert mine["stop"] == theirs[-1]["stop_reason"]


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_vllm_tells_no_client_are_captured(vllm: Server, stream: bool) -> None:
    """Where reasoning is hidden, vLLM hides ids and logprobs with it."""
    body = chat("Say hello.", temperature=0, stream=stream, **TOLD)
    shown, expected = await captured(vllm, CHAT, body, vllm.model)
    hidden, capture = await captured(vllm, CHAT, {**body, "include_reasoning": False}, vllm.model)
    told, untold = ([part.get("token_ids") for part in answer.choices(0)] for answer in (shown, hidden))
    assert any(told)
    assert not any(untold)
    assert capture["reason"] is None
    assert capture["choices"][0]["ids"] == expected["choices"][0]["ids"]
    assert capture["choices"][0]["logprobs"] == pytest.approx(expected["choices"][0]["logprobs"], abs=0.15)


def _usages(answer: Answer) -> list[Any]:
    return [part["usage"] for part in answer.parts() if part.get("usage")]


async def test_running_usage_counts_the_clients_frames(vllm: Server) -> None:
    body = {**FORMS["running usage"], "temperature": 0, "stream": True}
    await post(vllm, CHAT, {**body, "model": vllm.model})
    plain = await post(vllm, CHAT, {**body, "model": vllm.model})
    marked, capture = await captured(vllm, CHAT, body, vllm.model)
    assert _usages(marked)[-1] == _usages(plain)[-1]
    assert _usages(marked)[-1]["completion_tokens"] == len(capture["choices"][0]["ids"])


@pytest.mark.parametrize("stream", [False, True])
async def test_text_completions_of_three_and_with_stop_strings(vllm: Server, stream: bool) -> None:
    body: Body = {"prompt": "The sky is", "n": 3, "max_tokens": 9, "seed": 2, "temperature": 1.0, "stop": [" the"]}
    asked = {**body, "model": "x", "logprobs": 0, "return_token_ids": True, "stream": stream}
    answer, capture = await captured(vllm, COMPLETIONS, asked, vllm.model)
    assert [choice["index"] for choice in capture["choices"]] == [0, 1, 2]
    for mine in capture["choices"]:
        theirs = answer.choices(mine["index"])
        assert mine["ids"] == [token for part in theirs for token in part["token_ids"] or []]
        assert mine["finish"] == theirs[-1]["finish_reason"]


async def test_an_echoed_prompt_is_no_sampled_token(vllm: Server) -> None:
    body: Body = {"model": "x", "prompt": "The sky is", "max_tokens": 5, "temperature": 1.0, "echo": True}
    answer, capture = await captured(vllm, COMPLETIONS, {**body, "logprobs": 0}, vllm.model)
    assert answer.json()["choices"][0]["text"].startswith("The sky is")
    (choice,) = capture["choices"]
    logprobs = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
    assert logprobs[len(capture["prompts"][0]) :] == choice["logprobs"]
    assert len(choice["ids"]) == 5
    best = {**body, "echo": False, "best_of": 2}  # no parameter of vLLM's any more: passed over
    _, capture = await captured(vllm, COMPLETIONS, best, vllm.model)
    assert len(capture["choices"]) == 1


async def _explored(vllm: Server, body: Body, path: str = CHAT) -> tuple[Answer, dict[str, Any]]:
    header = request_header(vllm.secret, NONCE, vllm.model, Exploration())
    answer = await post(vllm, path, body, {"x-slipstream": header})
    assert answer.capture is not None, answer.body
    return answer, answer.capture


async def test_greedy_siblings_differ_where_they_are_explored_and_are_greedy_where_not(vllm: Server) -> None:
    body = chat("Tell me a story.", temperature=0, top_p=0.5)
    explored = [(await _explored(vllm, body))[1] for _ in range(8)]
    assert len({tuple(capture["choices"][0]["ids"]) for capture in explored}) >= 7
    for capture in explored:
        sampling = {key: capture["sampling"][key] for key in ("temperature", "top_p", "top_k", "min_p")}
        assert sampling == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    asked = [(await captured(vllm, CHAT, body, vllm.model))[1] for _ in range(2)]
    assert [capture["sampling"]["temperature"] for capture in asked] == [0.0, 0.0]
    assert asked[0]["choices"][0]["ids"] == asked[1]["choices"][0]["ids"]


async def test_the_logprobs_of_an_explored_call_are_those_of_temperature_one(vllm: Server) -> None:
    body = chat("Tell me a story.", temperature=0.3, top_k=2, seed=4, max_tokens=24)
    _, capture = await _explored(vllm, body)
    (mine,) = capture["choices"]
    ids = capture["prompts"][0] + mine["ids"]
    again = {"model": vllm.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    told = (await post(vllm, COMPLETIONS, again)).json()["choices"][0]["prompt_logprobs"]
    start = len(capture["prompts"][0])
    raw = [told[start + place][str(token)]["logprob"] for place, token in enumerate(mine["ids"])]
    differences = [abs(one - other) for one, other in zip(mine["logprobs"], raw, strict=True)]
    assert sum(differences) / len(differences) <= 0.08, "what bfloat16 leaves (promise 4); temperature 0.3: far more"
    assert len(differences) > 8


async def test_a_schema_holds_under_exploration(vllm: Server) -> None:
    for _ in range(3):
        answer, capture = await _explored(vllm, {**FORMS["json schema"], "temperature": 0})
        assert capture["sampling"]["structured"] is True
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"])["yes"], bool)
