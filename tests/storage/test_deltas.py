import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import deltas

_pieces = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\x00", b"W", b"D", b"long piece"]), max_size=12).map(b"".join)


@given(data=_pieces, base=st.none() | _pieces)
def test_what_was_encoded_is_decoded(data: bytes, base: bytes | None) -> None:
    blob = deltas.encode(data, base)
    assert deltas.decode(blob, base) == data
    assert len(blob) <= 1 + len(data)


_texts = st.lists(st.sampled_from([b"a word ", b"another ", b"\x00\xff", b"x" * 300]), max_size=30).map(b"".join)


@given(data=_texts, base=st.none() | _texts, text=_texts)
def test_what_was_deflated_is_inflated(data: bytes, base: bytes | None, text: bytes) -> None:
    blob = deltas.encode(data, base, text)
    assert deltas.decode(blob, base, text) == data
    assert len(blob) <= 1 + len(data)


_BESIDE = b"the words that stand readable beside it"
_SAID = b'{"message":"the words that stand readable beside it, and twelve more: the words that stand"}'
_BY_ZLIB = bytes.fromhex("5aab56ca4d2d2e4e4c4f55b2522a214e8b8e02c8a892f2d49cb25485dcfca2542ba015989629d50200")
"""The same, as zlib 1.3 wrote it into older databases."""


def test_what_zlib_deflated_is_inflated() -> None:
    assert deltas.decode(_BY_ZLIB, None, _BESIDE) == _SAID


def test_zlib_inflates_what_is_deflated() -> None:
    blob = deltas.encode(_SAID, None, _BESIDE)
    assert blob[:1] == b"Z"
    assert zlib.decompressobj(-15, zdict=_BESIDE).decompress(blob[1:]) == _SAID


@pytest.mark.parametrize("size", [1000, 40_000, 5_000_000])
def test_what_stands_readable_beside_it_costs_little(size: int) -> None:
    """Also where the text is longer than what deflate looks at."""
    words = b" ".join(b"%d" % (n * n) for n in range(size // 8))
    data = b'{"message":"' + words + b'"}'
    blob = deltas.encode(data, None, words)
    assert deltas.decode(blob, None, words) == data
    assert len(blob) < len(data) // 10


@given(head=_pieces, a=_pieces, b=_pieces, tail=_pieces)
def test_prefix_and_suffix_are_the_longest(head: bytes, a: bytes, b: bytes, tail: bytes) -> None:
    one, two = head + a + tail, head + b + tail
    prefix = deltas.common_prefix(one, two)
    assert one[:prefix] == two[:prefix]
    assert one[prefix : prefix + 1] != two[prefix : prefix + 1] or prefix == min(len(one), len(two))
    limit = min(len(one), len(two)) - prefix
    suffix = deltas.common_suffix(one, two, limit)
    assert suffix == 0 or one[-suffix:] == two[-suffix:]
    assert suffix == limit or one[len(one) - suffix - 1] != two[len(two) - suffix - 1]


def test_a_difference_costs_what_is_new() -> None:
    base = b'{"messages":[' + b"x" * 100_000 + b'],"stream":true}'
    data = b'{"messages":[' + b"x" * 100_000 + b',"new"],"stream":true}'
    assert len(deltas.encode(data, base)) == 1 + 4 + 4 + len(b',"new"')


def test_what_shares_nothing_is_kept_whole() -> None:
    blob = deltas.encode(b"abcdefghijkl", b"zyxw")
    assert deltas.is_whole(blob)
    assert deltas.decode(blob, None) == b"abcdefghijkl"


def test_a_difference_needs_its_base() -> None:
    blob = deltas.encode(b"a" * 100 + b"b", b"a" * 100)
    assert not deltas.is_whole(blob)
    with pytest.raises(ValueError, match="without the bytes that it refers to"):
        deltas.decode(blob, None)


@pytest.mark.parametrize("new", [1, 40, 1000])
@pytest.mark.parametrize("first", [0, 100, 100_000])
@pytest.mark.parametrize("turns", [50, 1000])
def test_an_append_only_history_costs_what_is_new(new: int, first: int, turns: int) -> None:
    kept = deltas_kept = depth = 0
    for turn in range(1, turns + 1):
        whole = first + turn * new
        if turn == 1 or deltas.is_due(depth, deltas_kept, whole):
            depth, deltas_kept, cost = 0, 0, whole
        else:
            depth, cost = depth + 1, new
            deltas_kept += cost
        kept += cost
    assert kept <= 3 * (first + turns * new)


def test_short_chains_are_never_cut() -> None:
    assert not deltas.is_due(63, 10_000, 100)
    assert deltas.is_due(64, 50, 100)
    assert not deltas.is_due(1000, 49, 100)
