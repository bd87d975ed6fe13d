"""A secret is blotted out wherever it comes back, however it is cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from storage.secrecy import Blotter, Secrets

_SECRETS = Secrets("aabaabaac", "abaabaacxx", None, "", "EMPTY")
_TEXT = st.lists(st.sampled_from([b"aabaabaac", b"abaabaacxx", b"a", b"b", b"aab", b"aabaabaa", b"x"])).map(b"".join)


def test_every_byte_of_a_secret_becomes_an_asterisk() -> None:
    secrets = Secrets("the-secret", "the-secret-of-the-other")
    assert secrets.blot(b"a the-secret-of-the-other, the-secret.") == b"a ***********************, **********."


def test_a_short_key_is_a_word_like_any_other() -> None:
    assert Secrets("EMPTY").blot(b"the list is EMPTY") == b"the list is EMPTY"


@given(_TEXT, st.lists(st.integers(0, 60)))
def test_pieces_are_blotted_as_the_whole(text: bytes, cuts: list[int]) -> None:
    blotter = Blotter(_SECRETS)
    at = [0, *sorted(cuts), len(text)]
    came = b"".join(blotter.feed(text[a:b]) for a, b in itertools.pairwise(at)) + blotter.end()
    assert len(came) == len(text)
    assert b"aabaabaac" not in came
    assert b"abaabaacxx" not in came
    assert all(c in (t, ord("*")) for c, t in zip(came, text, strict=True))


@given(st.binary(), st.integers(0, 20))
def test_what_holds_no_secret_passes_at_once(data: bytes, cut: int) -> None:
    blotter = Blotter(Secrets("!!the-secret!!"))
    head = blotter.feed(data[:cut])
    assert data[:cut].startswith(head)
    if not data[:cut].endswith(b"!"):
        assert head == data[:cut]
    assert head + blotter.feed(data[cut:]) + blotter.end() == data
