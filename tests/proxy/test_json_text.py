"""JSON changed in places: what it means changes there and nowhere else, and no other byte does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.json_text import Change, changed, dumps, elements, members, put

texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
objects = st.dictionaries(st.sampled_from(["model", "messages", "n", "é", 'a"b', "\\"]) | texts, values, max_size=6)
styles: Any = st.sampled_from([{"separators": (",", ":")}, {"indent": 2}, {}, {"ensure_ascii": False}])


@given(document=objects, style=styles, given_=st.dictionaries(st.sampled_from(["model", "n", "new"]), values))
def test_what_is_put_stands_there_and_all_else_stays(
    document: dict[str, Any], style: dict[str, Any], given_: dict[str, Any]
) -> None:
    body = json.dumps(document, **style).encode()
    assert json.loads(put(body, given_)) == document | given_


@given(document=objects, style=styles)
def test_members_and_elements_are_where_they_are_said_to_be(document: dict[str, Any], style: dict[str, Any]) -> None:
    text = json.dumps({"list": [document, 1, "x"], "more": document}, **style).encode().decode("latin-1")
    found = dict(members(text))
    assert json.loads(text[slice(*found["more"])].encode("latin-1")) == document
    places = list(elements(text, found["list"].start))
    assert [json.loads(text[slice(*place)].encode("latin-1")) for place in places] == [document, 1, "x"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"n":2}'),
        (b" { } ", b' { "n":2} '),
        (b'{"a": 1.50}', b'{"a": 1.50,"n":2}'),
        (b'{"n" : null , "a":1}', b'{"n" : 2 , "a":1}'),
        (b'{"n":1,"a":0,"n":3}', b'{"n":2,"a":0,"n":2}'),
        (b'{"\\u006e":1}', b'{"\\u006e":2}'),
        ('{"ü":"ü", "n": 1}'.encode(), '{"ü":"ü", "n": 2}'.encode()),
        (b'{"a": NaN, "b": "\\ud800"}', b'{"a": NaN, "b": "\\ud800","n":2}'),
        (b'{"a":{"n":1}}', b'{"a":{"n":1},"n":2}'),
        (b'{"a":"\xff\xfe"}', b'{"a":"\xff\xfe","n":2}'),
    ],
)
def test_no_other_byte_changes(body: bytes, expected: bytes) -> None:
    assert put(body, {"n": 2}) == expected


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b'{"a"', b'{"a":}', b"{a:1}", b'{"a', b'{"a":1,}', b'{"a" 1}', b'{"a":1 "b":2}']
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting|Unterminated"):
        put(body, {"n": 2})


def test_a_text_without_changes_is_the_same() -> None:
    assert changed('{"a":1}', []) == '{"a":1}'
    ((_, place),) = members('{"a":1}')
    assert changed('{"a":1}', [Change(place, dumps("ü"))]).encode("latin-1") == '{"a":"ü"}'.encode()
