"""The calls that are made and the answers that they get: fixed, so that what was recorded can be compared with them.

A conversation is a number; its four calls are its turns. Conversations whose numbers differ by a multiple of
`VARIANTS` get the same answers.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

from storage import captures

MODEL = "bench-model"
TURNS = 4
VARIANTS = 16
FRAMES = 64
TASK = b"Go on with task "
"""Begins each question; conversation, turn and workload follow, by which the upstream finds the answer."""

_CHARACTERS_PER_TOKEN = 4.5
_PROMPT_TOKENS = 220
_SENTENCE = "the agent reads a file, notes what it has found there, decides which tool is called next and goes on"
_WORDS = _SENTENCE.split()


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of call."""

    name: str
    reply_bytes: int
    """Of the body of a plain answer. An event stream has `FRAMES` deltas of one token instead."""
    streams: bool = False


PLAIN = Workload("plain", 1_400)
PLAIN_20K = Workload("plain 20k", 20_000)
STREAM = Workload("stream", 0, streams=True)
WORKLOADS = {workload.name: workload for workload in (PLAIN, PLAIN_20K, STREAM)}


@dataclass(frozen=True, slots=True)
class Reply:
    """What the upstream answers, without and with what the plugin adds."""

    body: bytes
    """A plain answer's body; the frames of a stream, joined."""
    frames: tuple[bytes, ...]
    """Of a stream; empty for a plain answer."""
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    capture: bytes
    """The plugin's payload."""


def request_body(workload: Workload, session: int, turn: int) -> bytes:
    """The request of a turn: about 1 KB of JSON, every turn beginning with what the turn before it said."""
    return _template(workload, turn).replace(b"12345678", b"%08d" % session)


@cache
def _template(workload: Workload, turn: int) -> bytes:
    """The request, with the eight digits 12345678 wherever the conversation's number stands."""
    messages = [{"role": "system", "content": _text(random.Random(1), 500)}]
    for earlier in range(turn):
        answer = {"role": "assistant", "content": f"Noted: step {earlier} is done."}
        messages += [_question(workload, earlier), answer]
    messages.append(_question(workload, turn))
    document = {"model": MODEL, "messages": messages, "temperature": 1.0, "user": "bench"}
    return json.dumps(document | ({"stream": True} if workload.streams else {})).encode()


def _question(workload: Workload, turn: int) -> dict[str, str]:
    name = f"{TASK.decode()}12345678.{turn}.{workload.name}:"
    return {"role": "user", "content": f"{name} {_text(random.Random(turn), 60)}"}


@cache
def reply(name: str, variant: int, turn: int) -> Reply:
    """The answer of workload ``name`` to a turn of the conversations of one variant."""
    workload = WORKLOADS[name]
    chance = random.Random(f"{name} {variant} {turn}")
    prompt_ids = _ids(random.Random(variant), _PROMPT_TOKENS + 40 * TURNS)[: _PROMPT_TOKENS + 40 * turn]
    if workload.streams:
        ids = _ids(chance, FRAMES)
        frames = _stream(chance, variant, turn)
        body = b"".join(frames)
    else:
        body, characters = _plain(chance, workload.reply_bytes, variant, turn)
        ids, frames = _ids(chance, int(characters / _CHARACTERS_PER_TOKEN)), ()
    logprobs = tuple(_single(-chance.expovariate(1.2)) for _ in ids)
    choice = {"index": 0, "prompt": 0, "ids": ids, "logprobs": logprobs, "finish": "stop", "stop": None}
    capture = captures.pack(None, [prompt_ids], [choice], _SAMPLING)
    return Reply(body, frames, prompt_ids, ids, logprobs, capture)


_SAMPLING: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "n": 1,
    "max_tokens": 4096,
    "min_tokens": 0,
    "logit_bias": False,
    "structured": False,
    "logits_processors": False,
}


def _plain(chance: random.Random, size: int, variant: int, turn: int) -> tuple[bytes, int]:
    """A whole answer of ``size`` bytes, and how many of them are its text."""

    def document(text: str) -> bytes:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "tool_calls": [],
            "reasoning": None,
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "token_ids": None}
        whole = _head("chat.completion", variant, turn) | {
            "choices": [choice],
            "usage": {"prompt_tokens": _PROMPT_TOKENS, "total_tokens": 512, "completion_tokens": 292},
            "prompt_logprobs": None,
            "kv_transfer_params": None,
        }
        return json.dumps(whole, separators=(",", ":")).encode()

    text = _text(chance, size - len(document("")))
    return document(text), len(text)


def _stream(chance: random.Random, variant: int, turn: int) -> tuple[bytes, ...]:
    """The frames as vLLM writes them: the role, one for each token but the last, the end, and `[DONE]`."""
    head = _head("chat.completion.chunk", variant, turn)

    def frame(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
        return b"data: " + json.dumps(head | {"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"

    words = [frame({"content": f" {chance.choice(_WORDS)}"}) for _ in range(FRAMES - 3)]
    return (frame({"role": "assistant", "content": ""}), *words, frame({"content": "."}, "stop"), b"data: [DONE]\n\n")


def _head(kind: str, variant: int, turn: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{variant:08x}{turn:024x}", "object": kind, "created": 1_760_000_000, "model": MODEL}


def _text(chance: random.Random, size: int) -> str:
    words: list[str] = []
    while sum(map(len, words)) + len(words) <= size:
        words.append(chance.choice(_WORDS))
    return " ".join(words)[:size]


def _ids(chance: random.Random, count: int) -> tuple[int, ...]:
    return tuple(chance.randrange(150_000) for _ in range(count))


def _single(value: float) -> float:
    """As a float of single precision: what vLLM's logprobs are."""
    number: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return number
