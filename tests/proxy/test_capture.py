"""The knife: whatever the bytes and wherever they are split, the client's bytes and the capture come apart."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.capture import Cutter, Exploration, frame_length, new_nonce, request_header
from storage import captures
from tests.fake_vllm.capture import frame, read_mark

NONCE = "0123456789abcdef" * 2

# Bytes that look like a frame's beginning are what the knife could trip over.
tricky = st.lists(
    st.sampled_from([b"\x1e", NONCE.encode(), NONCE[:7].encode(), b" ", b"5\n", b"\n", b"data: x", b"\xf0\x9f\x98\x80"])
    | st.binary(max_size=8),
    max_size=12,
).map(b"".join)


def cut(data: bytes, splits: list[int]) -> tuple[bytes, bytes | None]:
    """What comes out of a cutter that is fed ``data`` split at ``splits``."""
    cutter = Cutter(NONCE)
    out = b""
    at = 0
    for split in [*sorted(split % (len(data) + 1) for split in splits), len(data)]:
        out += cutter.feed(data[at:split])
        at = split
    return out + cutter.end(), cutter.capture


@given(
    before=tricky,
    after=tricky,
    payload=st.binary(max_size=300) | tricky,
    splits=st.lists(st.integers(0, 10_000), max_size=9),
)
def test_any_split_of_any_bytes_comes_apart_alike(
    before: bytes, after: bytes, payload: bytes, splits: list[int]
) -> None:
    whole = before + frame(NONCE, payload) + after
    if b"\x1e" + NONCE.encode() + b" " in before:
        return  # only the plugin knows the nonce
    assert cut(whole, splits) == (before + after, payload)


@given(data=tricky, splits=st.lists(st.integers(0, 10_000), max_size=9))
def test_what_is_no_frame_passes(data: bytes, splits: list[int]) -> None:
    if b"\x1e" + NONCE.encode() + b" " not in data:
        assert cut(data, splits) == (data, None)


@pytest.mark.parametrize("size", [1, 2, 3, 33, 34, 35, 36, 64])
def test_pieces_of_any_size(size: int) -> None:
    data = b"before \x1e" + NONCE.encode()[:20] + frame(NONCE, b"the payload\x1e") + b"after"
    expected = b"before \x1e" + NONCE.encode()[:20] + b"after"
    assert cut(data, list(range(0, len(data), size))) == (expected, b"the payload\x1e")


def test_numbers_that_look_like_a_frame_are_numbers() -> None:
    """Arrays hold any bytes: the marker, newlines, even the call's own nonce."""
    odd = frame(NONCE, b"\n") * 3
    numbers = struct.unpack(f"<{len(odd) // 4}i", odd[: len(odd) // 4 * 4])
    payload = captures.pack(None, [numbers], [{"ids": numbers, "logprobs": [-0.5] * len(numbers)}], {})
    assert NONCE.encode() in payload
    data = b"before" + frame(NONCE, payload) + b"after"
    for at in range(len(data)):
        assert cut(data, [at]) == (b"beforeafter", payload)


def test_another_calls_frame_is_text() -> None:
    other = frame("f" * 32, b"x")
    assert cut(other, []) == (other, None)


def test_a_frame_that_breaks_off_is_no_capture() -> None:
    assert cut(frame(NONCE, b"payload")[:-1], []) == (b"", None)


def test_only_the_beginning_of_a_frame_is_held_back() -> None:
    cutter = Cutter(NONCE)
    assert cutter.feed(b"text \x1e") == b"text "
    assert cutter.feed(NONCE.encode()[:5]) == b""
    assert cutter.feed(b"!") == b"\x1e" + NONCE.encode()[:5] + b"!"


def test_a_frame_without_a_length_is_refused() -> None:
    with pytest.raises(ValueError, match="has no length"):
        Cutter(NONCE).feed(b"\x1e" + NONCE.encode() + b" many\n")


@pytest.mark.parametrize(
    ("header", "length"),
    [("1 0", 0), ("1 734", 734), (None, None), ("2 7", None), ("1", None), ("1 x", None), ("1 \xb2", None)],
)
def test_the_header_tells_the_plugin(header: str | None, length: int | None) -> None:
    assert frame_length(header) == length


@pytest.mark.parametrize("model", [None, "base", "org/model", "policy@3", "mit Leerzeichen ü"])
def test_the_mark_is_what_the_plugin_reads(model: str | None) -> None:
    nonce = new_nonce()
    mark = read_mark([(b"x-slipstream", request_header("secret", nonce, model).encode())], "secret")
    assert mark is not None
    assert (mark.nonce, mark.model, mark.exploration) == (nonce, model, {})


def test_an_exploration_travels_in_the_mark() -> None:
    header = request_header("secret", NONCE, "policy@3", Exploration(2.0, 0.9, 50))
    mark = read_mark([(b"x-slipstream", header.encode())], "secret")
    assert mark is not None
    assert mark.exploration == {"temperature": 2.0, "top_p": 0.9, "top_k": 50, "min_p": 0.0}
