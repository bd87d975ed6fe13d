"""Tags in headers."""

from __future__ import annotations

import pytest

from proxy.errors import BadTag
from proxy.tags import Tags, check_tag, read_tags

NONE = Tags(None, None, None, False, "train")

GOOD = [
    ([], NONE),
    ([(b"x-session-id", b"s"), (b"x-scenario-id", b"c")], Tags("s", "c", None, False, "train")),
    ([(b"x-agent", b"planner"), (b"x-session-end", b"true")], Tags(None, None, "planner", True, "train")),
    ([(b"x-session-end", b"False"), (b"x-split", b"eval")], Tags(None, None, None, False, "eval")),
    ([(b"x-session-id", "größe 日本 😀".encode())], Tags("größe 日本 😀", None, None, False, "train")),
    ([(b"x-session-id", b"a" * 256)], Tags("a" * 256, None, None, False, "train")),
    ([(b"x-session-id", "ü".encode() * 256)], Tags("ü" * 256, None, None, False, "train")),
    ([(b"x-other", b"\xff"), (b"x-other", b"")], NONE),
]

BAD = [
    ([(b"x-session-id", b"")], "X-Session-Id has 0 characters; it can have 1 to 256"),
    ([(b"x-scenario-id", b"a" * 257)], "X-Scenario-Id has 257 characters; it can have 1 to 256"),
    ([(b"x-session-id", b"caf\xe9")], "X-Session-Id is not UTF-8"),
    ([(b"x-agent", b"a\x00b")], "X-Agent holds a character that cannot be printed"),
    ([(b"x-session-id", "a\u200eb".encode())], "X-Session-Id holds a character that cannot be printed"),
    ([(b"x-session-id", b"a"), (b"x-session-id", b"a")], "X-Session-Id is given twice"),
    ([(b"x-split", b"Eval")], "X-Split is 'Eval'; it can be train or eval"),
    ([(b"x-session-end", b"yes")], "X-Session-End is 'yes'; it can be true or false"),
]


@pytest.mark.parametrize(("headers", "tags"), GOOD, ids=range(len(GOOD)))
def test_tags_are_read(headers: list[tuple[bytes, bytes]], tags: Tags) -> None:
    assert read_tags(headers) == tags


@pytest.mark.parametrize(("headers", "reason"), BAD, ids=range(len(BAD)))
def test_a_tag_that_cannot_be_used_says_why(headers: list[tuple[bytes, bytes]], reason: str) -> None:
    with pytest.raises(BadTag) as refused:
        read_tags(headers)
    assert (str(refused.value), refused.value.status) == (reason, 400)


def test_a_tag_in_a_path_is_held_to_the_same() -> None:
    assert check_tag("the session id", "a/b") == "a/b"
    with pytest.raises(BadTag, match="the session id has 0 characters"):
        check_tag("the session id", "")
