"""Tags in headers, in the URL and in the body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadTag
from proxy.tags import MAX_TAG, TAG_HEADERS, Tags, check_tag, read_tags
from storage.types import TaggedBy
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import CHAT, RunningProxy, request

HEADER, URL, BODY, NONE = TaggedBy.HEADER, TaggedBy.URL, TaggedBy.BODY, TaggedBy.NONE


@dataclass(frozen=True)
class Url:
    session: str | None = None
    scenario: str | None = None


def tags(session: str | None = None, scenario: str | None = None, agent: str | None = None, **more: Any) -> Tags:
    """Tags as headers give them, if nothing else is said."""
    by = {"session_by": HEADER if session else NONE, "scenario_by": HEADER if scenario else NONE}
    return Tags(
        **({"session": session, "scenario": scenario, "agent": agent, "ends": False, "split": "train"} | by | more)
    )


GOOD = [
    ([], tags()),
    ([(b"x-session-id", b"s"), (b"x-scenario-id", b"c")], tags("s", "c")),
    ([(b"x-agent", b"planner"), (b"x-session-end", b"true")], tags(agent="planner", ends=True)),
    ([(b"x-session-end", b"False"), (b"x-split", b"eval")], tags(split="eval")),
    ([(b"x-session-id", "größe 日本 😀".encode())], tags("größe 日本 😀")),
    ([(b"x-session-id", b"a" * 256)], tags("a" * 256)),
    ([(b"x-session-id", "ü".encode() * 256)], tags("ü" * 256)),
    ([(b"x-other", b"\xff"), (b"x-other", b"")], tags()),
]

BAD = [
    ([(b"x-session-id", b"")], "X-Session-Id has 0 characters; it can have 1 to 256"),
    ([(b"x-scenario-id", b"a" * 257)], "X-Scenario-Id has 257 characters; it can have 1 to 256"),
    ([(b"x-session-id", b"caf\xe9")], "X-Session-Id is not UTF-8"),
    ([(b"x-agent", b"a\x00b")], "X-Agent holds a character that cannot be printed"),
    ([(b"x-agent", b"a\rb")], "X-Agent holds a character that cannot be printed"),
    ([(b"x-agent", b"a\nb")], "X-Agent holds a character that cannot be printed"),
    ([(b"x-session-id", "a\u200eb".encode())], "X-Session-Id holds a character that cannot be printed"),
    ([(b"x-session-id", b"a"), (b"x-session-id", b"a")], "X-Session-Id is given twice"),
    ([(b"x-split", b"Eval")], "X-Split is 'Eval'; it can be train or eval"),
    ([(b"x-session-end", b"yes")], "X-Session-End is 'yes'; it can be true or false"),
]


@pytest.mark.parametrize(("headers", "expected"), GOOD, ids=range(len(GOOD)))
def test_headers_are_read(headers: list[tuple[bytes, bytes]], expected: Tags) -> None:
    assert read_tags(headers) == expected


@pytest.mark.parametrize(("headers", "reason"), BAD, ids=range(len(BAD)))
def test_a_tag_that_cannot_be_used_says_why(headers: list[tuple[bytes, bytes]], reason: str) -> None:
    with pytest.raises(BadTag) as refused:
        read_tags(headers)
    assert (str(refused.value), refused.value.status) == (reason, 400)


@pytest.mark.parametrize(
    ("header", "url", "body", "expected"),
    [
        ("h", "u", "b", ("h", HEADER)),
        ("h", "u", None, ("h", HEADER)),
        ("h", None, "b", ("h", HEADER)),
        (None, "u", "b", ("u", URL)),
        (None, None, "b", ("b", BODY)),
        (None, None, None, (None, NONE)),
        ("h", None, 5, ("h", HEADER)),  # what is weaker is not looked at
    ],
)
def test_the_strongest_tag_wins_each_for_itself(
    header: str | None, url: str | None, body: object, expected: tuple[str | None, TaggedBy]
) -> None:
    given_header = [] if header is None else [header.encode()]
    found = read_tags(
        [(b"x-session-id", h) for h in given_header], Url(session=url), {"metadata": {"session_id": body}}
    )
    assert ((found.session, found.session_by), (found.scenario, found.scenario_by)) == (expected, (None, NONE))
    found = read_tags(
        [(b"x-scenario-id", h) for h in given_header], Url(scenario=url), {"metadata": {"scenario_id": body}}
    )
    assert ((found.session, found.session_by), (found.scenario, found.scenario_by)) == ((None, NONE), expected)


def test_one_request_can_be_tagged_in_two_places() -> None:
    found = read_tags([(b"x-session-id", b"h")], Url(scenario="u"), {"metadata": {"session_id": "b"}})
    assert (found.session, found.session_by, found.scenario, found.scenario_by) == ("h", HEADER, "u", URL)


BAD_BODIES = [
    (5, "metadata.session_id is of type number; it must be a string"),
    (True, "metadata.session_id is of type boolean; it must be a string"),
    (["s"], "metadata.session_id is of type array; it must be a string"),
    ({}, "metadata.session_id is of type object; it must be a string"),
    ("", "metadata.session_id has 0 characters; it can have 1 to 256"),
    ("a" * 257, "metadata.session_id has 257 characters; it can have 1 to 256"),
    ("a\nb", "metadata.session_id holds a character that cannot be printed"),
    ("a\x00", "metadata.session_id holds a character that cannot be printed"),
    ("\ud800", "metadata.session_id holds a character that cannot be printed"),
]


@pytest.mark.parametrize(("value", "reason"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_tag_in_the_body_that_cannot_be_used_says_why(value: object, reason: str) -> None:
    with pytest.raises(BadTag) as refused:
        read_tags([], None, {"metadata": {"session_id": value}})
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    "document",
    [None, [], 5, "x", {}, {"metadata": None}, {"metadata": "m"}, {"metadata": {"user_id": 7}}, {"metadata": []}],
)
def test_a_body_without_tags_is_nobodys_fault(document: object) -> None:
    assert read_tags([], None, document) == tags()


@given(text=st.text())
def test_a_tag_is_refused_or_taken_as_it_is(text: str) -> None:
    """Whatever is taken has 1 to 256 characters, and nothing in it could end a line or a header."""
    try:
        found = read_tags([], None, {"metadata": {"session_id": text}}).session
    except BadTag:
        assert not 1 <= len(text) <= MAX_TAG or not text.isprintable()
    else:
        assert found == text
        assert 1 <= len(text) <= MAX_TAG
        assert not set(text) & {chr(code) for code in (*range(32), 127, 0x85, 0x2028, 0x2029)}


def test_a_tag_in_a_path_is_held_to_the_same() -> None:
    assert check_tag("the session id", "a/b") == "a/b"
    with pytest.raises(BadTag, match="the session id has 0 characters"):
        check_tag("the session id", "")


@pytest.mark.parametrize("breaking", [b"\r", b"\n", b"\x00"], ids=["CR", "LF", "NUL"])
def test_what_could_end_a_line_reaches_nobody(proxy: RunningProxy, fake: FakeVllm, breaking: bytes) -> None:
    tag = b"a" + breaking + b"b"
    for name in sorted(TAG_HEADERS):
        answer = raw.ask(proxy.url, CHAT, request(), {name.decode(): tag})
        assert answer.status == 400, name
    quoted = quote(tag)
    for prefix in (f"/session/{quoted}", f"/scenario/{quoted}", f"/scenario/c/session/{quoted}"):
        assert raw.ask(proxy.url, prefix + CHAT, request()).status == 400
    for field in ("session_id", "scenario_id"):
        assert raw.ask(proxy.url, CHAT, request(metadata={field: tag.decode()})).status == 400
    for act in ("end", "reward"):
        assert raw.ask(proxy.url, f"/v1/sessions/{quoted}/{act}", b'{"value": 1}').status == 400
    assert fake.calls() == []
