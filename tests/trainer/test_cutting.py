"""What does not fit is cut in the middle of its longest parts, marked, and never more than must be."""

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import tokens
from trainer.cutting import fit, level

MARK = "c0ffee00"


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def size(lists: list[list[Any]]) -> int:
    return sum(tokens.count(json.dumps(one, ensure_ascii=False, separators=(",", ":"))) for one in lists)


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("hello world", 2), ("<|endoftext|>", 7), ("tiktoken is great!", 6), ("\ud800", 1)]
)
def test_tokens_are_counted_as_cl100k_counts_them(text: str, count: int) -> None:
    """The first examples are OpenAI's own; what looks like a special token is text."""
    assert tokens.count(text) == count
    assert "TIKTOKEN_CACHE_DIR" not in os.environ


@given(st.text(max_size=200), st.integers(0, 60))
def test_ends_are_ends(text: str, length: int) -> None:
    front, back = tokens.head(text, length), tokens.tail(text, length)
    assert text.startswith(front)
    assert text.endswith(back)
    if length >= tokens.count(text):
        assert front == back == text


def test_ends_of_a_text_of_many_pieces() -> None:
    text = " ".join(map(str, range(10_000)))
    front, back = tokens.head(text, 5000), tokens.tail(text, 5000)
    assert text.startswith(front)
    assert text.endswith(back)
    assert 4900 < tokens.count(front) <= 5010
    assert 4900 < tokens.count(back) <= 5010


@pytest.mark.parametrize(
    ("lengths", "total", "expected"),
    [([5, 5, 5], 15, 5), ([1, 9, 9], 11, 5), ([1, 2, 30], 10, 7), ([4, 4], 0, 0), ([4, 4], -3, 0), ([], 7, 0)],
)
def test_the_level(lengths: list[int], total: int, expected: int) -> None:
    assert level(lengths, total) == expected


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(0, 500))
def test_the_level_is_the_greatest(lengths: list[int], total: int) -> None:
    found = level(lengths, total)
    assert sum(min(length, found) for length in lengths) <= total
    if found < max(lengths):
        assert sum(min(length, found + 1) for length in lengths) > total


def test_only_the_longest_text_is_cut_in_its_middle() -> None:
    log = " ".join(f"line {number}" for number in range(400))
    lists = [[said("short"), said(log), said("also short")]]
    found = fit(lists, 300, MARK)
    assert found is not None
    ((first, middle, last),), cut = found
    assert (first, last) == (said("short"), said("also short"))
    text = middle["content"]
    assert text.startswith("line 0 line 1 ")
    assert text.endswith(" line 398 line 399")
    assert f"[{MARK}: " in text
    assert "tokens cut here]" in text
    assert (cut.texts, cut.messages) == (1, 0)
    assert cut.tokens == size(lists) - size([[first, middle, last]])
    assert 240 < size(found[0]) <= 300, "no more is cut than must be"


def test_the_texts_of_tool_calls_are_cut_too() -> None:
    wants = {
        "id": "c1",
        "type": "function",
        "function": {"name": "write", "arguments": '{"text": "' + "spam " * 900 + '"}'},
    }
    found = fit([[said("", tool_calls=[wants])]], 200, MARK)
    assert found is not None
    (call,) = found[0][0][0]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c1", "write")
    assert MARK in call["function"]["arguments"]


def test_of_too_many_messages_those_in_the_middle_go() -> None:
    talk = [said(f"step {number}") for number in range(300)]
    found = fit([[said("task")], talk, [said("one step")]], 600, MARK)
    assert found is not None
    (context, long, short), cut = found
    assert (context, short) == ([said("task")], [said("one step")])
    assert (long[0], long[-1]) == (talk[0], talk[-1])
    (place,) = [place for place, one in enumerate(long) if one["role"] == "cut"]
    assert long[place]["content"] == f"[{MARK}: {cut.messages} messages cut here]"
    assert len(long) - 1 == 300 - cut.messages
    assert abs(place - (len(long) - 1 - place)) <= 1, "as many before it as behind it"


def test_what_cannot_be_cut_so_far() -> None:
    assert fit([[said("a" * 100)]] * 8, 40, MARK) is None


_texts = st.integers(0, 400).map(lambda words: "wörd " * words) | st.text(max_size=60)
_json = st.recursive(
    st.text(max_size=30) | st.integers(-9, 9) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.builds(said, _texts, extra=_json), max_size=9), min_size=1, max_size=3),
    st.integers(0, 900),
)
def test_what_fits_fits_and_roles_stay(lists: list[list[Any]], limit: int) -> None:
    found = fit(lists, limit, MARK)
    if found is None:
        return
    shown, cut = found
    assert size(shown) <= limit
    assert cut.tokens == size(lists) - size(shown)
    for before, after in zip(lists, shown, strict=True):
        kept = [one for one in after if one["role"] != "cut"]
        assert len(kept) == len(before) or len(kept) == len(after) - 1
        assert bool(kept) == bool(before), "something of each is shown"
        assert all(one["role"] == "assistant" for one in kept)
