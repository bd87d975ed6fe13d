"""Slipstream's plugin inside a real vLLM: adapters kept apart, tokens captured, the client's bytes untouched."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.e2e.marked_calls import TIMEOUT, Answer, Body, Server, captured, chat, mark_of, post

pytestmark = pytest.mark.e2e

QUESTIONS = (
    "Name a colour.",
    "What is the capital of France?",
    "Who wrote Hamlet?",
    "What is water?",
    "Is fire hot?",
    "Say hello.",
)


def _without_ids(body: bytes) -> bytes:
    text = re.sub(rb'"(id|item_id|call_id|request_id)":"[^"]*"', rb'"\1":""', body)
    return re.sub(rb'"(created|created_at|completed_at)":[0-9.]+', rb'"\1":0', text)


SLOTS = 6
"""vLLM's `--max-loras`."""


@pytest.fixture(scope="module")
def names(vllm: Server) -> Iterator[list[str]]:
    """Base model and the two adapters, by the names under which vLLM answers.

    They are loaded under more names, until every slot holds an adapter: the fault of vLLM 0.32 answers a call
    to the base model by what is in the last slot, and an empty slot would hide it.
    """
    paths = itertools.cycle(vllm.adapters.values())
    loaded = {f"plugin/test@{number}": str(path) for number, path in zip(range(SLOTS), paths, strict=False)}
    with httpx.Client(base_url=vllm.base_url, timeout=TIMEOUT) as client:
        for name, path in loaded.items():
            client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path}).raise_for_status()
        yield [vllm.model, *list(loaded)[:2]]
        for name in loaded:
            client.post("/v1/unload_lora_adapter", json={"lora_name": name}).raise_for_status()


# --- Adapters, kept apart -------------------------------------------------------------------------------------

DECISIVE = 0.5
"""Nats by which a greedy token must have beaten the runner-up for another token in its place to be an error.

A batch changes the order of bf16 sums, and logits of 16 to 32 come in steps of 0.125: measured in batches of
the base model alone, |Δ logprob| is 0.014 on average and 0.09 at most, and tokens 0.25 apart may change places.
What follows another token is another text, and is not compared.
"""
NOISE = 0.1
"""Mean |Δ logprob| over the answers of one model that bf16 may explain: measured in such batches are 0.038 to 0.045,
and 0.28 and more between two of the models."""


@dataclass(frozen=True, slots=True)
class Greedy:
    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    margins: list[float]


async def _greedy(vllm: Server, name: str, question: str, stream: bool = False) -> Greedy:
    body = chat(question, temperature=0, logprobs=True, top_logprobs=2, stream=stream)
    answer, capture = await captured(vllm, "/v1/chat/completions", body, name)
    tops = [
        [top["logprob"] for top in token["top_logprobs"]]
        for choice in answer.choices(0)
        if choice["logprobs"]
        for token in choice["logprobs"]["content"]
    ]
    (choice,) = capture["choices"]
    (prompt,) = capture["prompts"]
    return Greedy(prompt, choice["ids"], choice["logprobs"], [first - second for first, second in tops])


@asynccontextmanager
async def _crowd(vllm: Server, names: list[str]) -> AsyncIterator[None]:
    """Long calls to the adapters under way, so that no short call of the base model has a batch for itself."""
    body = chat("Tell me a long story.", max_tokens=LONG, ignore_eos=True, stream=True)

    async def one_after_another(name: str) -> None:
        while True:
            await captured(vllm, "/v1/chat/completions", body, name)

    calls = [asyncio.create_task(one_after_another(name)) for name in names]
    try:
        await _until_running(vllm, len(calls))
        yield
        assert not any(call.done() for call in calls), "a call of the crowd failed"
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await _until_running(vllm, 0)


LONG = 1500
"""Tokens of a call that nothing but a client's leaving ends early."""


async def _metric(vllm: Server, name: str) -> float:
    async with httpx.AsyncClient(base_url=vllm.base_url, timeout=TIMEOUT) as client:
        found = re.search(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", (await client.get("/metrics")).text, re.M)
    assert found is not None, name
    return float(found[1])


async def _until_running(vllm: Server, wanted: int) -> None:
    """Waits until so many generations run inside vLLM."""
    async with asyncio.timeout(TIMEOUT):
        while await _metric(vllm, "num_requests_running") != wanted:  # noqa: ASYNC110 - vLLM tells it only when asked
            await asyncio.sleep(0.1)


def _compare(alone: Greedy, other: Greedy) -> tuple[bool, list[float]]:
    """Whether another answer is an error, and |Δ logprob| of the tokens up to the first that differs."""
    gaps: list[float] = []
    for position, margin in enumerate(alone.margins):
        if other.ids[position] != alone.ids[position]:
            return margin >= DECISIVE, gaps
        gaps.append(abs(other.logprobs[position] - alone.logprobs[position]))
    return False, gaps


def _verdict(pairs: list[tuple[Greedy, Greedy]]) -> tuple[int, float, int]:
    """Of the answers of one model: errors, mean |Δ logprob|, tokens compared."""
    found = [_compare(alone, other) for alone, other in pairs]
    gaps = [gap for _, some in found for gap in some]
    return sum(error for error, _ in found), sum(gaps) / max(len(gaps), 1), len(gaps)


async def test_base_and_adapters_in_one_batch_answer_as_they_do_alone(vllm: Server, names: list[str]) -> None:
    alone = {(name, question): await _greedy(vllm, name, question) for name in names for question in QUESTIONS}
    # The measure must see one model answering for another; else all that follows would show nothing.
    for one, other in itertools.permutations(names, 2):
        errors, gap, _ = _verdict([(alone[one, question], alone[other, question]) for question in QUESTIONS])
        assert errors >= 2 or gap > 2 * NOISE, (one, other)

    keys = [(*key, stream) for key in alone for stream in (False, True)]
    async with _crowd(vllm, names[1:]):
        together = dict(zip(keys, await asyncio.gather(*(_greedy(vllm, *key) for key in keys)), strict=True))
    for name in names:
        pairs = [(alone[key[:2]], greedy) for key, greedy in together.items() if key[0] == name]
        assert all(alone.prompt == greedy.prompt for alone, greedy in pairs)
        errors, gap, compared = _verdict(pairs)
        assert (errors, compared >= 40) == (0, True), (name, errors, gap, compared)
        assert gap <= NOISE, (name, errors, gap, compared)


# --- Capture --------------------------------------------------------------------------------------------------

ASKED = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0, "temperature": 1.2, "top_p": 0.9, "seed": 7}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_chat_is_captured_as_vllm_itself_reports_it(
    vllm: Server, names: list[str], n: int, stream: bool, which: int
) -> None:
    body = chat(QUESTIONS[0], n=n, stream=stream, **ASKED)
    answer, capture = await captured(vllm, "/v1/chat/completions", body, names[which])
    assert capture["reason"] is None
    assert capture["prompts"] == [answer.parts()[0]["prompt_token_ids"]]
    assert [(choice["index"], choice["prompt"]) for choice in capture["choices"]] == [(i, 0) for i in range(n)]
    for mine in capture["choices"]:
        theirs = answer.choices(mine["index"])
        assert mine["ids"] == [token for part in theirs for token in part.get("token_ids") or []]
        told = [token for part in theirs if part["logprobs"] for token in part["logprobs"]["content"]]
        assert mine["logprobs"] == [token["logprob"] for token in told]
        assert mine["finish"] == theirs[-1]["finish_reason"]
    sampling = {"temperature": 1.2, "top_p": 0.9, "seed": 7, "n": n, "max_tokens": 8, "structured": False}
    assert sampling.items() <= capture["sampling"].items()
    if stream:
        finishes = [b'"finish_reason":"length"' in piece for piece in (answer.before, answer.after)]
        assert finishes[1], "the last finish is behind the capture"
        assert n > 1 or not finishes[0]
        assert answer.after.endswith(b"data: [DONE]\n\n")


async def test_logprobs_that_nobody_asked_for_are_captured_and_not_shown(vllm: Server, names: list[str]) -> None:
    quiet = chat(QUESTIONS[2], temperature=1.0, seed=3)
    for _ in range(2):  # the second run finds the prompt in the prefix cache, as all later ones do
        answer, capture = await captured(vllm, "/v1/chat/completions", quiet, names[2])
    assert answer.json()["choices"][0]["logprobs"] is None
    asked = {**quiet, "logprobs": True, "top_logprobs": 0, "return_token_ids": True}
    told = (await post(vllm, "/v1/chat/completions", {**asked, "model": names[2]})).json()["choices"][0]
    (mine,) = capture["choices"]
    assert mine["ids"] == told["token_ids"]
    logprobs = [token["logprob"] for token in told["logprobs"]["content"]]
    assert mine["logprobs"] == pytest.approx(logprobs, abs=0.02)


ONE_CALL: dict[str, Body] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 8},
    "/v1/completions": {"prompt": "The sky is", "max_tokens": 8},
    "/v1/responses": {"input": "Name a colour.", "max_output_tokens": 8},
    "/v1/messages": {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 8},
}


def _shape(answer: Answer) -> tuple[list[Any], str]:
    """A stream without its ids: the frames, runs of pieces of text as one, and the text.

    How many tokens go into a frame is a matter of timing, with the plugin as without it.
    """
    frames: list[Any] = []
    text = ""
    for line in _without_ids(answer.body).decode().split("\n\n"):
        pattern = r'"(text|content|delta)":"((?:[^"\\]|\\.)*)"'
        text += "".join(found[1] for found in re.findall(pattern, line) if "delta" in line or "text_completion" in line)
        frame = re.sub(r'"sequence_number":\d+', "", re.sub(pattern, r'"\1":""', line))
        if not frames or frames[-1] != frame:
            frames.append(frame)
    return frames, text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ONE_CALL)
async def test_the_clients_bytes_are_those_of_an_uncaptured_call(
    vllm: Server, names: list[str], path: str, stream: bool
) -> None:
    body = {"model": names[1], "temperature": 0, "stream": stream, **ONE_CALL[path]}
    await post(vllm, path, body)  # fills the prefix cache
    plain = await post(vllm, path, body)
    marked, capture = await captured(vllm, path, body, names[1])
    assert plain.version is None
    assert capture["reason"] is None
    if stream:
        assert _shape(marked) == _shape(plain)
    else:
        assert _without_ids(marked.body) == _without_ids(plain.body)
    (choice,) = capture["choices"]
    assert len(choice["ids"]) == len(choice["logprobs"]) == 8
    assert choice["finish"] == "length"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_dialects_without_token_ids_are_captured_all_the_same(
    vllm: Server, names: list[str], path: str, stream: bool
) -> None:
    body = {"model": "x", "temperature": 0, **ONE_CALL[path]}
    reference, expected = await captured(vllm, "/v1/chat/completions", chat("Name a colour.", temperature=0), names[2])
    answer, capture = await captured(vllm, path, {**body, "stream": stream}, names[2])
    assert capture["prompts"] == expected["prompts"]
    assert capture["choices"][0]["ids"] == expected["choices"][0]["ids"]
    text = reference.json()["choices"][0]["message"]["content"]
    assert json.dumps(text)[1:-1] in answer.body.decode() or stream
    if stream:
        last = {"/v1/responses": b"event: response.completed", "/v1/messages": b"event: message_delta"}[path]
        assert last in answer.after
        assert last not in answer.before


# --- Who answers ----------------------------------------------------------------------------------------------


async def test_the_header_names_who_answers_and_the_body_is_echoed(vllm: Server, names: list[str]) -> None:
    texts = []
    for name in names:
        body = chat(QUESTIONS[0], temperature=0)
        await post(vllm, "/v1/chat/completions", {**body, "model": name})
        own = (await post(vllm, "/v1/chat/completions", {**body, "model": name})).json()
        marked = (await captured(vllm, "/v1/chat/completions", {**body, "model": "gpt-4o"}, name))[0].json()
        assert own["model"] == name
        assert marked["model"] == "gpt-4o"
        assert marked["choices"] == own["choices"]
        texts.append(own["choices"][0]["message"]["content"])
    assert len(set(texts)) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_engine(vllm: Server, names: list[str], stream: bool) -> None:
    body = chat("Tell me a long story.", max_tokens=LONG, stream=stream, ignore_eos=True)
    await _until_running(vllm, 0)
    before = await _metric(vllm, "generation_tokens_total")
    leaving = asyncio.create_task(post(vllm, "/v1/chat/completions", body, mark_of(vllm, names[1])))
    await _until_running(vllm, 1)
    leaving.cancel()
    await _until_running(vllm, 0)
    assert await _metric(vllm, "generation_tokens_total") - before < LONG
