"""What is read in a completion: prompts, and what followed each."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.dialects.completions import Completions
from tests.proxy.dialects.sent import stream

COMPLETIONS = Completions()


def read(request: dict[str, Any], *choices: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The texts of the prompts and of the answers."""
    reading = COMPLETIONS.read(orjson.dumps(request), orjson.dumps({"choices": choices}), False)
    assert {message["role"] for message in reading.messages} <= {"user"}
    assert {message["role"] for message in reading.output} <= {"assistant"}
    return [m["content"] for m in reading.messages], [m["content"] for m in reading.output]


def choice(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": None}


PROMPTS: dict[str, tuple[Any, list[str]]] = {
    "text": ("Once", ["Once"]),
    "texts": (["Once", "Twice"], ["Once", "Twice"]),
    "ids": ([1, 22, 3], ["token ids: 1 22 3 "]),
    "lists of ids": ([[1], [22, 3]], ["token ids: 1 ", "token ids: 22 3 "]),
    "none": (None, []),
    "empty": ([], []),
}


@pytest.mark.parametrize(("prompt", "texts"), PROMPTS.values(), ids=PROMPTS.keys())
def test_prompts(prompt: Any, texts: list[str]) -> None:
    assert read({"prompt": prompt}, choice(0, " upon")) == (texts, [" upon"])
    grows = COMPLETIONS.read(orjson.dumps({"prompt": prompt}), b"", False).grows
    assert grows == (len(texts) == 1)


def test_choices_of_two_prompts_and_their_echo() -> None:
    echoed = [choice(0, "A1"), choice(1, "A2"), choice(2, "B1"), choice(3, "B2")]
    asked: dict[str, Any] = {"prompt": ["A", "B"], "n": 2}
    assert read(asked, *echoed) == (["A", "B"], ["A1", "A2", "B1", "B2"])
    assert read({**asked, "echo": True}, *echoed) == (["A", "B"], ["1", "2", "1", "2"])


def test_a_stream() -> None:
    frames = stream(
        {"choices": [choice(1, "b")]},
        {"choices": [choice(0, "a"), choice(1, "B")]},
        {"choices": [], "usage": {"total_tokens": 4}},
        {"choices": [{"index": 0, "text": "A", "finish_reason": "length"}]},
    )
    answers = COMPLETIONS.read(b'{"prompt":"x"}', frames + b"data: [DONE]\n\n", True).output
    assert answers == ({"role": "assistant", "content": "aA"}, {"role": "assistant", "content": "bB"})
