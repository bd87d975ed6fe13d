"""Which paths of vLLM agents reach: an allowlist. What is forwarded is a path of this table, never a client's bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import unquote

from proxy.dialects import DIALECTS, Dialect
from proxy.errors import BadTag, NoSuchMethod, NoSuchPath
from proxy.tags import check_tag


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes."""

    path: str
    """As vLLM gets it: a path of the table, without Slipstream's prefixes and without a query."""
    dialect: Dialect | None
    """How its tokens are captured; None: they are not."""
    recorded: bool
    session: str | None = None
    """From the URL; so the scenario."""
    scenario: str | None = None
    response_id: str | None = None
    """The stored response that is asked for."""


INFERENCE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
"""vLLM's public inference paths (0.32, its routers), all of them POST; every call to them is recorded."""

_INFERENCE = {path.encode(): Route(path, DIALECTS.get(path), recorded=True) for path in INFERENCE}
# vLLM's ids are `resp_` and hexadecimal digits; a client may choose another one.
_RESPONSE = re.compile(rb"/v1/responses/([A-Za-z0-9_-]{1,256})(/cancel)?")

# One segment: what RFC 3986 lets stand in one, other than percent signs that begin nothing.
SEGMENT = rb"((?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)"
PREFIX = rb"(?:/scenario/" + SEGMENT + rb")?(?:/session/" + SEGMENT + rb")?"
_PREFIX = re.compile(PREFIX + rb"(?=/)")


def find_route(method: str, raw_path: bytes) -> Route:
    """The route of a request; ``raw_path`` is its target as it came, without the query.

    Raises `NoSuchPath` for whatever the table does not hold, `NoSuchMethod` as vLLM does for another method than the
    path's, `BadTag` for a session or a scenario in the URL that cannot be used.
    """
    if method == "POST" and (route := _INFERENCE.get(raw_path)) is not None:
        return route
    prefix = _PREFIX.match(raw_path)
    if prefix is None:
        raise _unknown(method, raw_path)
    route, allowed = _look_up(raw_path[prefix.end() :])
    if route is None:
        raise _unknown(method, raw_path)
    if method != allowed:
        raise NoSuchMethod(allowed)
    scenario, session = (
        None if text is None else read_segment(name, text)
        for name, text in zip(("scenario", "session"), prefix.groups(), strict=True)
    )
    return route if scenario is None and session is None else replace(route, session=session, scenario=scenario)


def vllm_path(raw_path: bytes) -> str:
    """The path of vLLM that a request's target means, by whatever method. Raises `NoSuchPath`."""
    prefix = _PREFIX.match(raw_path)
    route, _ = _look_up(raw_path[prefix.end() :]) if prefix is not None else (None, "")
    if route is None:
        raise _unknown("OPTIONS", raw_path)
    return route.path


def _look_up(path: bytes) -> tuple[Route | None, str]:
    """The route of a path without prefix, and its method."""
    if (route := _INFERENCE.get(path)) is not None:
        return route, "POST"
    if (found := _RESPONSE.fullmatch(path)) is not None:
        route = Route(path.decode(), None, recorded=False, response_id=found[1].decode())
        return route, "POST" if found[2] else "GET"
    return None, ""


def read_segment(name: str, text: bytes) -> str:
    """The tag that a `SEGMENT` of a URL holds. Raises `BadTag`."""
    try:
        tag = unquote(text.decode(), errors="strict")
    except UnicodeDecodeError:
        raise BadTag(f"the {name} in the URL is not UTF-8") from None
    if tag in (".", ".."):  # to some programs on the way these are no names
        raise BadTag(f"the {name} in the URL is {tag!r}: name it otherwise")
    return check_tag(f"the {name} in the URL", tag)


def _unknown(method: str, raw_path: bytes) -> NoSuchPath:
    shown = raw_path[:200].decode("ascii", "backslashreplace")
    # What the clients make of a base URL with too little or too much: OpenAI's add no /v1, Anthropic's do.
    prefix = _PREFIX.match(raw_path)
    # `/session/v1/...` lacks the session, not a /v1.
    path = raw_path[prefix.end() :] if prefix is not None and b"v1" not in prefix.groups() else b""
    for meant, hint in ((b"/v1" + path, "ends in /v1"), (path.removeprefix(b"/v1"), "has no /v1 of its own")):
        if _look_up(meant)[0] is not None:
            return NoSuchPath(f"{method} {shown} is not served here, {meant.decode()} is: the base URL {hint}")
    return NoSuchPath(f"{method} {shown} is not served here: only vLLM's inference paths are, spelled as vLLM has them")
