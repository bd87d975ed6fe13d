"""The allowlist: whatever is asked, vLLM gets a path of the table, or nothing."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.dialects import DIALECTS
from proxy.errors import BadTag, NoSuchMethod, NoSuchPath
from proxy.paths import Route, find_route, vllm_path
from tests.proxy.vllm_routes import CONTROL, OTHER, PUBLIC

RESPONSE_ID = "resp_0123456789abcdef"
SERVED = [(method, path.replace("{response_id}", RESPONSE_ID)) for method, path in PUBLIC]
SERVED_PATHS = {path for _, path in SERVED}
_CANONICAL = re.compile("|".join(re.escape(p).replace(r"\{response_id\}", "[A-Za-z0-9_-]{1,256}") for _, p in PUBLIC))

PREFIXES = [
    ("", None, None),
    ("/session/a", "a", None),
    ("/scenario/b", None, "b"),
    ("/scenario/b/session/a", "a", "b"),
    ("/scenario/b%2Fc%20d/session/%E6%97%A5", "日", "b/c d"),
    ("/session/%252e", "%2e", None),  # decoded once
    ("/session/v1", "v1", None),
    ("/scenario/session/session/scenario", "scenario", "session"),
    ("/session/a;b=c@d:e+f", "a;b=c@d:e+f", None),
    ("/session/" + "a" * 256, "a" * 256, None),
]


@pytest.mark.parametrize(("prefix", "session", "scenario"), PREFIXES)
@pytest.mark.parametrize(("method", "path"), SERVED)
def test_what_is_public_is_forwarded(
    method: str, path: str, prefix: str, session: str | None, scenario: str | None
) -> None:
    recorded = method == "POST" and not path.endswith("/cancel")
    stored = "resp_0123456789abcdef" if "/resp_" in path else None
    expected = Route(path, DIALECTS.get(path), recorded, session, scenario, stored)
    assert find_route(method, (prefix + path).encode()) == expected


SPELLINGS = [
    "{}/",
    "/{}",
    "//v1{}",
    "/.{}",
    "/..{}",
    "/v1/..{}",
    "/v1/%2e%2e{}",
    "/v1/.%2E{}",
    "/v1/chat/completions/..{}",
    "/v1/chat/completions/../../..{}",
    "/v1/chat/completions{}",
    "/v1/responses{}",
    "/v1/responses/..{}",
    "/session/..{}",
    "/session/a/..{}",
    "/session/a//{}",
    "/session/{}",
    "/session/a/session/b{}",
    "/session/a/scenario/b{}",
    "/scenario/a/v1/..{}",
    "http://vllm:8000{}",
    "//vllm:8000{}",
    "vllm:8000{}",
    "{};",
    "{};a=b",
    "/;{}",
    "{}%00",
    "{}\x00",
    "{}%0d%0a",
    "{}%20",
    "{} ",
    "{}%2f",
    "{}.",
    "{}.json",
    "{}#",
    "{}?",
    "{}\\",
    "\\{}",
    "/v1/chat/completions\\..{}",
    "%2f{}",
    "{}\u00e9",
]


METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT")


@pytest.mark.parametrize("path", [*CONTROL, *OTHER])
def test_control_paths_are_not_reachable_however_they_are_spelled(path: str) -> None:
    escaped = "/" + "".join(f"%{ord(c):02x}" for c in path[1:])
    half = path[:2] + "".join(f"%{ord(c):02X}" for c in path[2:])
    spelled = [path, "/v1" + path, path.upper(), escaped, half, path.replace("/", "%2f"), path.replace("/", "//")]
    spelled += [prefix + path for prefix, *_ in PREFIXES]
    for target in spelled + [form.format(path) for form in SPELLINGS]:
        for method in METHODS:
            route = _forwarded(method, target.encode())
            # A word alone is fit to be a response's id, where vLLM reads one.
            assert route is None or (method == "GET" and re.fullmatch("/v1/responses/[a-z_]+", route)), target


@pytest.mark.parametrize(("method", "path"), SERVED)
def test_a_public_path_is_spelled_as_vllm_has_it(method: str, path: str) -> None:
    for form in SPELLINGS:
        assert _forwarded(method, form.format(path).encode()) is None, form


@pytest.mark.parametrize(("method", "path"), SERVED)
@pytest.mark.parametrize("asked", ["GET", "HEAD", "PUT", "OPTIONS", "POST", "post", "DELETE", ""])
def test_another_method_is_refused_as_vllm_refuses_it(method: str, path: str, asked: str) -> None:
    if asked != method:
        with pytest.raises(NoSuchMethod) as refused:
            find_route(asked, path.encode())
        assert refused.value.headers == ((b"allow", method.encode()),)


BAD = [
    ("/session/%ff", "the session in the URL is not UTF-8"),
    ("/session/%00", "the session in the URL holds a character that cannot be printed"),
    ("/session/a%0d%0ab", "the session in the URL holds a character that cannot be printed"),
    ("/scenario/%0A", "the scenario in the URL holds a character that cannot be printed"),
    ("/session/" + "a" * 257, "the session in the URL has 257 characters; it can have 1 to 256"),
    ("/session/..", "the session in the URL is '..': name it otherwise"),
    ("/session/%2e%2E", "the session in the URL is '..': name it otherwise"),
    ("/scenario/./session/a", "the scenario in the URL is '.': name it otherwise"),
]


@pytest.mark.parametrize(("prefix", "reason"), BAD)
def test_a_tag_in_the_url_that_cannot_be_used_says_why(prefix: str, reason: str) -> None:
    with pytest.raises(BadTag) as refused:
        find_route("POST", f"{prefix}/v1/chat/completions".encode())
    assert (str(refused.value), refused.value.status) == (reason, 400)


@pytest.mark.parametrize(
    "target",
    [
        b"",
        b"/session/v1/completions",
        b"/",
        b"*",
        b"/session",
        b"/session/",
        b"/session/a",
        b"/scenario/%/v1/completions",
        b"/session//v1/completions",
    ],
)
def test_what_is_no_path_of_ours_is_not_found(target: bytes) -> None:
    with pytest.raises(NoSuchPath, match="only vLLM's inference paths are"):
        find_route("POST", target)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        (b"/chat/completions", "/v1/chat/completions is: the base URL ends in /v1"),
        (b"/scenario/t/session/a/responses", "/v1/responses is: the base URL ends in /v1"),
        (b"/v1/v1/messages", "/v1/messages is: the base URL has no /v1 of its own"),
    ],
)
def test_a_base_url_with_too_little_or_too_much_is_told_so(target: bytes, hint: str) -> None:
    with pytest.raises(NoSuchPath) as refused:
        find_route("POST", target)
    assert str(refused.value) == f"POST {target.decode()} is not served here, {hint}"


_TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300)
_METHOD = st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"])
_PIECE = st.one_of(
    st.sampled_from(["/", "..", ".", "%2e", "%2F", "%5c", "\\", "//", ";", "\x00", "%00", "v1", "session", "scenario"]),
    st.sampled_from([*CONTROL, *OTHER, *SERVED_PATHS]),
    _TEXT.map(quote),
    st.text(max_size=5),
)


@given(_METHOD, st.one_of(st.binary(), st.lists(_PIECE, max_size=8).map(lambda parts: "".join(parts).encode())))
@example("POST", b"/v1/responses/../cancel")
@example("GET", b"/v1/responses/..")
def test_only_canonical_paths_are_ever_forwarded(method: str, target: bytes) -> None:
    for forwarded in (_forwarded(method, target), _preflighted(target)):
        assert forwarded is None or _CANONICAL.fullmatch(forwarded)
        assert forwarded not in CONTROL


@given(st.sampled_from(SERVED), _TEXT, st.none() | _TEXT)
def test_a_quoted_tag_comes_back_as_it_was(served: tuple[str, str], session: str, scenario: str | None) -> None:
    method, path = served
    prefix = f"/scenario/{quote(scenario, safe='')}" if scenario is not None else ""
    target = f"{prefix}/session/{quote(session, safe='')}{path}".encode()
    try:
        route = find_route(method, target)
    except BadTag:
        tags = [tag for tag in (session, scenario) if tag is not None]
        assert any(len(tag) > 256 or not tag.isprintable() or tag in (".", "..") for tag in tags)
    else:
        assert (route.path, route.session, route.scenario) == (path, session, scenario)
        assert unquote(target.decode()).endswith(route.path)


@given(st.sampled_from(SERVED), st.sampled_from([prefix for prefix, *_ in PREFIXES]))
def test_a_preflight_goes_to_the_path_of_the_call(served: tuple[str, str], prefix: str) -> None:
    assert vllm_path((prefix + served[1]).encode()) == served[1]


def _preflighted(target: bytes) -> str | None:
    try:
        return vllm_path(target)
    except NoSuchPath:
        return None


def _forwarded(method: str, target: bytes) -> str | None:
    try:
        return find_route(method, target).path
    except (NoSuchPath, NoSuchMethod, BadTag):
        return None
