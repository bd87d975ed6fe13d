"""An answer of a vLLM without the plugin: tokens and client's bytes come apart, or it is told why not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.capture import Exploration
from proxy.foreign import prepare
from tests.captures import unpacked
from tests.proxy.running import STATED


def stream_of(*frames: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % orjson.dumps(frame) for frame in frames) + b"data: [DONE]\n\n"


def told(ids: list[int], text: str | None, **more: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    content: list[dict[str, Any]] = [
        {"token": "?", "logprob": -0.5 * i, "bytes": None, "top_logprobs": []} for i in ids
    ]
    choice = {"index": 0, "delta": delta, "logprobs": {"content": content}, "finish_reason": None, "token_ids": ids}
    return {"model": "policy@1", "choices": [{**choice, **more}]}


def shown(text: str | None, **more: Any) -> dict[str, Any]:
    choice = told([], text, **more)["choices"][0]
    return {"model": "gpt-4o", "choices": [{**choice, "logprobs": None, "token_ids": None}]}


ROLE = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
TOLD = [
    {"model": "policy@1", "choices": [ROLE], "prompt_token_ids": [7, 8]},
    told([1], "a\u2028b 日本"),
    told([2], None),  # a parser withholds the text: vLLM sends this for the ids' sake alone
    told([3, 4], 'data: {"x": 1}\n\n'),
    told([5], None, finish_reason="tool_calls", stop_reason=None),
    {"model": "policy@1", "choices": [], "usage": {"total_tokens": 7}},
]
SHOWN = [
    {"model": "gpt-4o", "choices": [ROLE], "prompt_token_ids": None},
    shown("a\u2028b 日本"),
    shown('data: {"x": 1}\n\n'),
    shown(None, finish_reason="tool_calls", stop_reason=None),
    {"model": "gpt-4o", "choices": [], "usage": {"total_tokens": 7}},
]
ASKED: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "x"}], "stream": True, **STATED}


def through(asked: dict[str, Any], stream: bytes, splits: list[int], dialect: str = "chat") -> tuple[bytes, Any]:
    """What comes out of a stream that arrives split at ``splits``: the client's bytes, and the capture."""
    _, capturer = prepare(dialect, orjson.dumps(asked), asked, "policy@1", None)
    out, at = b"", 0
    for split in [*sorted(split % (len(stream) + 1) for split in splits), len(stream)]:
        out += capturer.feed(stream[at:split])
        at = split
    out += capturer.end()
    return out, unpacked(capturer.capture) if capturer.capture else None


@given(st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_a_stream_comes_apart_alike_wherever_it_is_split(splits: list[int], end: bytes) -> None:
    stream = (b": a comment\n\n" + stream_of(*TOLD)).replace(b"\n\n", end)
    out, capture = through(ASKED, stream, splits)
    assert out == (b": a comment\n\n" + stream_of(*SHOWN)).replace(b"\n\n", end)
    assert (capture["reason"], capture["prompts"]) == (None, [[7, 8]])
    assert capture["choices"] == [
        {
            "index": 0,
            "prompt": 0,
            "ids": [1, 2, 3, 4, 5],
            "logprobs": [-0.5, -1.0, -1.5, -2.0, -2.5],
            "finish": "tool_calls",
            "stop": None,
        }
    ]


def test_frames_without_text_stay_for_a_client_that_asked_for_what_is_in_them() -> None:
    for asked in ({"return_token_ids": True}, {"logprobs": True}):
        out, capture = through({**ASKED, **asked}, stream_of(*TOLD), [])
        assert out.count(b"data: ") == 7 + 1  # one of the texts holds the word
        assert capture["reason"] is None


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([TOLD[0], told([1], "a"), told([2], "b", finish_reason="stop", token_ids=None)], "told no token ids"),
        ([TOLD[0], told([1], "a", logprobs=None, finish_reason="stop")], "left out the logprob"),
        ([TOLD[0], told([1], "a", logprobs={"content": [{"logprob": -9999.0}]}, finish_reason="stop")], "left out"),
        ([TOLD[0], told([1], "a")], "ended before it was finished"),
        ([told([1], "a", finish_reason="stop")], "no token ids of the prompt"),
        ([TOLD[0], told([1], "a", finish_reason="stop", logprobs=3)], "capture failed: "),
        ([TOLD[0], told([1 << 40], "a", finish_reason="stop")], "capture failed: "),
        ([TOLD[0], {"choices": [{"index": None, "token_ids": 4, "finish_reason": "stop"}]}], "capture failed: "),
    ],
)
def test_what_vllm_does_not_tell_is_never_made_up(frames: list[dict[str, Any]], reason: str) -> None:
    out, capture = through(ASKED, stream_of(*frames), [])
    assert reason in capture["reason"]
    assert out.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe{\x00}\x00", b'{"model":"x"' + b',"a":[' * 3000, b"a=b"])
def test_a_body_that_is_no_object_goes_on_as_it_is(body: bytes) -> None:
    prepared, capturer = prepare("chat", body, None, "policy@1", Exploration())
    assert (prepared, capturer.resizes) == (body, False)
    assert capturer.feed(b"{}") == b"{}"


def test_greedy_calls_have_the_sampling_that_vllm_makes_of_them() -> None:
    asked = {**ASKED, "temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1}
    _, capture = through(asked, stream_of(*TOLD), [])
    assert capture["reason"] is None
    told_ = {name: capture["sampling"][name] for name in ("temperature", "top_p", "top_k", "min_p")}
    assert told_ == {"temperature": 0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
