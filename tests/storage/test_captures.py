"""Captures of every version that a journal may hold."""

import json
import struct
from base64 import b64encode
from typing import Any

import pytest

from proxy.vllm_plugin import recording
from storage import captures
from storage.captures import Capture, CapturedChoice

SAMPLING = {"temperature": 1.0}
IDS, LOGPROBS = [10, 256, 2**31 - 1], [-0.5, 0.0, -1.5]  # bytes of newlines among them
PROMPT = [1, 2]


def packed(code: str, numbers: list[Any]) -> bytes:
    return struct.pack(f"<{len(numbers)}{code}", *numbers)


def head(version: int | None, prompt: Any, ids: Any, logprobs: Any) -> bytes:
    choice = {"index": 1, "prompt": 0, "ids": ids, "logprobs": logprobs, "finish": "stop", "stop": None}
    document = {"reason": None, "prompts": [prompt], "choices": [choice], "sampling": SAMPLING}
    return json.dumps(document if version is None else {"v": version, **document}).encode()


ARRAYS = (packed("i", PROMPT), packed("i", IDS), packed("f", LOGPROBS))
VERSIONS = {
    "before versions": head(None, PROMPT, IDS, LOGPROBS),
    "lists": head(1, PROMPT, IDS, LOGPROBS),
    "base64": head(2, *(b64encode(one).decode() for one in ARRAYS)),
    "arrays": head(3, len(PROMPT), len(IDS), len(LOGPROBS)) + b"\n" + b"".join(ARRAYS),
}


@pytest.mark.parametrize("payload", VERSIONS.values(), ids=VERSIONS)
def test_every_version_is_read(payload: bytes) -> None:
    assert captures.read(payload) == Capture(None, ARRAYS[0], (CapturedChoice(1, "stop", *ARRAYS[1:]),), SAMPLING)


def test_what_is_packed_is_read() -> None:
    choices = [
        {"index": n, "prompt": 0, "ids": IDS[n:], "logprobs": LOGPROBS[n:], "finish": "stop", "stop": None}
        for n in range(3)
    ]
    read = captures.read(captures.pack("a reason", [PROMPT, []], choices, SAMPLING))
    assert (read.reason, read.prompt_ids, read.sampling) == ("a reason", ARRAYS[0], SAMPLING)
    assert [(c.number, c.ids, c.logprobs) for c in read.choices] == [
        (n, packed("i", IDS[n:]), packed("f", LOGPROBS[n:])) for n in range(3)
    ]


def test_a_call_of_which_the_plugin_has_nothing_is_read() -> None:
    call = recording.Call("0" * 32, "base")
    call.refuse("beam search")
    payload = call.frame().split(b"\n", 1)[1]
    assert captures.read(payload) == Capture("beam search", b"", (), {})


@pytest.mark.parametrize("payload", [VERSIONS["arrays"][:-1], VERSIONS["arrays"] + b"\0", VERSIONS["lists"] + b"\n\0"])
def test_numbers_that_were_not_counted_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="bytes of numbers"):
        captures.read(payload)
