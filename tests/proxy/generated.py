"""Generated requests to every path that is forwarded: what clients send, what they should not, what nobody would."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

Json = dict[str, Any]
Strategy = st.SearchStrategy

MODEL = "base-model"
AUDIO = ("/v1/audio/transcriptions", "/v1/audio/translations")
_BOUNDARY = "----a-boundary"


@dataclass(frozen=True, slots=True)
class Generated:
    """A request, and the tags that only the proxy gets."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str | bytes] = field(default_factory=dict)
    query: str = ""
    prefix: str = ""
    """Of the URL."""
    tags: Mapping[str, str | bytes] = field(default_factory=dict)
    """Headers."""

    @property
    def target(self) -> str:
        return self.path + self.query


TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from('\x00\u2028\ud83d\ude00\ud800"\\\n<é日😀'), max_size=12)
"""Halves of surrogate pairs among it, which JSON can hold and UTF-8 cannot."""
_NUMBER = st.one_of(
    st.floats(-1, 3), st.sampled_from([0, 1, -1, 2**63, -(2**63), 10**30, math.nan, math.inf, -math.inf, 1e-320])
)
_JSON: Strategy[Any] = st.recursive(
    st.none() | st.booleans() | _NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
_PRINTED = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=["C", "Z"]), min_size=1)
_TAG = _PRINTED.map(lambda text: text[:20]).filter(lambda text: text.isprintable() and text not in (".", ".."))


def _sometimes(strategy: Strategy[Any]) -> Strategy[Any]:
    return st.none() | strategy


def _some(**fields: Strategy[Any]) -> Strategy[Json]:
    """Any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def _object(**fields: Strategy[Any]) -> Strategy[Json]:
    return st.fixed_dictionaries(fields)


_SAMPLING: dict[str, Strategy[Any]] = {
    "temperature": st.sampled_from([0, 0.0, 0.7, 1, 2, None, 1e-320]),
    "top_p": st.sampled_from([1, 0.5]),
    "top_k": st.sampled_from([0, -1, 20, "20"]),
    "min_p": st.sampled_from([0, 0.1]),
    "seed": st.sampled_from([0, 7, 2**63 - 1, -1]),
    "stop": st.sampled_from(["a", ["er", "“"], [], None]),
    "presence_penalty": st.sampled_from([0, 1.5]),
    "logit_bias": st.sampled_from([None, {"7": 1.0}]),
    "stream": st.sampled_from([True, True, True, False, None, "true"]),
}
_LIMIT = st.sampled_from([1, 5, 40, 40, None, "9"])
_N = st.sampled_from([1, 1, 2, 3, None, "2"])
_PARAMETERS = st.sampled_from(
    [
        {},
        {"type": "object", "properties": {"city": {"type": "string"}, "größe": {"type": "integer"}}},
        {"type": "object", "properties": {"way": {"enum": ["north", "süd"]}}, "required": ["way"]},
    ]
)
_NAME = st.sampled_from(["search", "größe", "a_b-c", "read"])
_ORDER = st.sampled_from(
    ['[[call search {"city": "Köln"}]]', "[[say data: [DONE]]]", "[[call read {}]] [[call a_b-c {}]]"]
)
_IMAGE = "data:image/png;base64,iVBORw0KGgo="
_ARGUMENTS = st.sampled_from(['{"city": "Köln"}', "{}", "", "not JSON"])
_METADATA = _some(user_id=TEXT, session_id=_TAG, scenario_id=_TAG)


def _content(parts: Strategy[Json]) -> Strategy[Any]:
    return TEXT | _ORDER | st.lists(parts, max_size=3)


_CHAT_PART: Strategy[Json] = st.one_of(
    _object(type=st.just("text"), text=TEXT),
    _object(type=st.just("image_url"), image_url=_object(url=st.just(_IMAGE), detail=st.just("low"))),
    _object(type=st.just("input_audio"), input_audio=_object(data=st.just("UklGRg=="), format=st.just("wav"))),
    _object(type=st.just("unheard_of"), text=_JSON),
)
_CHAT_CALL = _object(id=st.just("call_1"), type=st.just("function"), function=_object(name=_NAME, arguments=_ARGUMENTS))
_CHAT_MESSAGE: Strategy[Json] = st.one_of(
    _object(role=st.sampled_from(["user", "system", "developer", "narrator"]), content=_content(_CHAT_PART)),
    _object(role=st.just("assistant"), content=st.none() | TEXT, tool_calls=st.lists(_CHAT_CALL, max_size=2)),
    _object(role=st.just("tool"), tool_call_id=st.just("call_1"), content=TEXT),
)
_CHAT_TOOL = _object(type=st.just("function"), function=_object(name=_NAME, parameters=_PARAMETERS))
_STREAM_OPTIONS = _some(include_usage=st.booleans(), continuous_usage_stats=st.booleans())

_CHAT: dict[str, Strategy[Any]] = {
    **_SAMPLING,
    "n": _N,
    "max_tokens": _LIMIT,
    "max_completion_tokens": _LIMIT,
    "logprobs": st.booleans(),
    "top_logprobs": st.sampled_from([0, 1, None]),
    "stream_options": _STREAM_OPTIONS,
    "return_token_ids": st.booleans(),
    "include_reasoning": st.booleans(),
    "reasoning_effort": st.sampled_from(["low", "high", None]),
    "tools": st.lists(_CHAT_TOOL, max_size=2),
    "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "read"}}]),
    "response_format": st.sampled_from(
        [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}]
    ),
    "metadata": _METADATA,
    "use_beam_search": st.booleans(),
}
_COMPLETION: dict[str, Strategy[Any]] = {
    **_SAMPLING,
    "n": _N,
    "max_tokens": _LIMIT,
    "logprobs": st.sampled_from([None, 0, 2]),
    "echo": st.booleans(),
    "stream_options": _STREAM_OPTIONS,
    "suffix": _sometimes(TEXT),
    "metadata": _METADATA,
}
_ITEM: Strategy[Json] = st.one_of(
    _object(
        role=st.sampled_from(["user", "assistant", "developer"]),
        content=_content(
            st.one_of(
                _object(type=st.just("input_text"), text=TEXT),
                _object(type=st.just("input_image"), image_url=st.just(_IMAGE), detail=st.just("auto")),
            )
        ),
    ),
    _object(type=st.just("function_call"), call_id=st.just("c"), name=_NAME, arguments=_ARGUMENTS),
    _object(type=st.just("function_call_output"), call_id=st.just("c"), output=TEXT),
)
_RESPONSES: dict[str, Strategy[Any]] = {
    **_SAMPLING,
    "instructions": _sometimes(TEXT),
    "max_output_tokens": _LIMIT,
    "previous_response_id": st.none(),
    "background": st.just(False),
    "store": st.booleans(),
    "tools": st.lists(_object(type=st.just("function"), name=_NAME, parameters=_PARAMETERS), max_size=2),
    "tool_choice": st.sampled_from(["auto", "required", {"type": "function", "name": "read"}]),
    "reasoning": st.sampled_from([None, {"effort": "low"}]),
    "include": st.just(["message.output_text.logprobs"]),
    "metadata": _METADATA,
}
_BLOCK: Strategy[Json] = st.one_of(
    _object(type=st.just("text"), text=TEXT),
    _object(type=st.just("image"), source=_object(type=st.just("base64"), data=st.just("iVBORw0KGgo="))),
    _object(type=st.just("tool_use"), id=st.just("t"), name=_NAME, input=st.just({"a": 1})),
    _object(type=st.just("tool_result"), tool_use_id=st.just("t"), content=TEXT),
)
_MESSAGES: dict[str, Strategy[Any]] = {
    **_SAMPLING,
    "system": TEXT | st.lists(_object(type=st.just("text"), text=TEXT), max_size=2),
    "stop_sequences": st.sampled_from([["er"], []]),
    "tools": st.lists(_object(name=_NAME, input_schema=_PARAMETERS), max_size=2),
    "tool_choice": st.sampled_from([{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "read"}]),
    "thinking": st.sampled_from([{"type": "enabled", "budget_tokens": 9}, {"type": "disabled"}]),
    "metadata": _METADATA,
}
_TURNS = st.lists(
    _object(role=st.sampled_from(["user", "assistant"]), content=_content(_BLOCK)), min_size=1, max_size=3
)
_CONVERSATION = st.lists(_CHAT_MESSAGE, min_size=1, max_size=4)
_INPUT = TEXT | st.lists(TEXT, max_size=3) | st.lists(st.integers(0, 255), max_size=4)

_FORMS: dict[str, tuple[dict[str, Strategy[Any]], dict[str, Strategy[Any]]]] = {
    "/v1/chat/completions": ({"messages": _CONVERSATION}, _CHAT),
    "/v1/completions": ({"prompt": _INPUT}, _COMPLETION),
    "/v1/responses": ({"input": TEXT | _ORDER | st.lists(_ITEM, max_size=3)}, _RESPONSES),
    "/v1/messages": ({"messages": _TURNS, "max_tokens": st.sampled_from([1, 40, "9"])}, _MESSAGES),
    "/v1/messages/count_tokens": ({"messages": _TURNS}, {"system": TEXT, "tools": _MESSAGES["tools"]}),
    "/tokenize": ({}, {"prompt": TEXT, "messages": _CONVERSATION, "return_token_strs": st.booleans()}),
    "/detokenize": ({"tokens": st.lists(st.integers(0, 257), max_size=6)}, {}),
    "rerank": ({"query": TEXT, "documents": st.lists(TEXT, max_size=3)}, {"top_n": st.sampled_from([None, 1])}),
    "score": ({}, {"queries": TEXT, "documents": st.lists(TEXT, max_size=3), "text_1": TEXT, "text_2": TEXT}),
}
"""By path, or by its last word: the fields that a request has, and those that it may have."""
_POOLED = (
    {"input": _INPUT},
    {"encoding_format": st.sampled_from(["float", "base64"]), "dimensions": st.sampled_from([None, 4])},
)


_ODD: dict[str, Strategy[Any]] = {
    "model": st.sampled_from(["nobody", "", None, 7]),
    "messages": st.sampled_from([[], None, "text", [7], [{"role": "user"}], [{}]]),
    "input": st.sampled_from([[], None, 7, [{}], [[]]]),
    "prompt": st.sampled_from([[], None, 7, "", [[]]]),
    "n": st.sampled_from([0, -1, 1.5, "x"]),
    "max_tokens": st.sampled_from([0, -1, 10**6, "x"]),
    "max_output_tokens": st.sampled_from([0, -1, 10**6]),
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": st.just([]),
    "min_p": st.just(7),
    "seed": st.just(2**63),
    "stop": st.just(7),
    "stream": st.sampled_from([7, "x"]),
    "stream_options": st.sampled_from([{"include_usage": True}, 7]),
    "tools": st.sampled_from([{}, [{}], [None], [{"type": "function"}]]),
    "tool_choice": st.sampled_from([7, "x", {}]),
    "response_format": st.just({"type": "json_schema"}),
    "previous_response_id": st.just("resp_0"),
    "background": st.just(True),
    "encoding_format": st.just("morse"),
    "documents": st.sampled_from([7, None, [None]]),
    "tokens": _JSON,
}
"""Values that a field should not have."""


@st.composite
def _document(draw: Callable[..., Any], path: str) -> Json:
    needed, optional = _FORMS.get(path) or _FORMS.get(path.rsplit("/", 1)[-1]) or _POOLED
    found: Json = {"model": MODEL, **draw(_object(**needed)), **draw(_some(**optional))}
    if found.get("stream") is not True:
        found.pop("stream_options", None)
    if draw(st.integers(0, 3)) == 0:
        odd = draw(st.sampled_from([name for name in _ODD if name in (*needed, *optional, "model")]))
        found[odd] = draw(_ODD[odd])
    if draw(st.integers(0, 3)) == 0:
        unknown = draw(st.dictionaries(TEXT, _JSON, max_size=2))
        found = {**{name: value for name, value in unknown.items() if name not in ("metadata", "best_of")}, **found}
    if draw(st.integers(0, 9)) == 0:
        found.pop(draw(st.sampled_from(list(found))))
    return found


@st.composite
def _json_body(draw: Callable[..., Any], path: str) -> bytes:
    document = draw(_document(path))
    escaped, indent = draw(st.booleans()), draw(st.sampled_from([None, None, 2]))
    body = json.dumps(document, ensure_ascii=escaped, indent=indent).encode("utf-8", "surrogatepass")
    sent: bytes = draw(_spoilt(body)) if draw(st.integers(0, 4)) == 0 else body
    return sent


def _spoilt(body: bytes) -> Strategy[bytes]:
    """A body that something happened to."""
    place = st.integers(0, len(body))
    return st.one_of(
        place.map(lambda at: body[:at]),
        st.tuples(place, st.sampled_from([b"\xff", b"\x00", b"\xed\xa0\x80", b'"', b"}", b"\\u0000", b"NaN"])).map(
            lambda drawn: body[: drawn[0]] + drawn[1] + body[drawn[0] :]
        ),
        st.sampled_from([b"", b"null", b"[]", b'"text"', b"\xef\xbb\xbf" + body, body + body, b" \n" + body + b"\r\n"]),
        st.just(body.decode("utf-8", "replace").encode("utf-16")),
        st.just(body.replace(b"{", b'{"model": "nobody", ', 1)),
        st.integers(150, 199).map(lambda deep: b'{"deep": ' + b"[" * deep + b"]" * deep + b", " + body[1:]),
        st.binary(max_size=30),
    )


@st.composite
def _form(draw: Callable[..., Any]) -> bytes:
    """A body of `multipart/form-data`."""
    fields = draw(
        _some(
            model=st.sampled_from([MODEL, "nobody"]),
            language=st.just("de"),
            prompt=TEXT.map(lambda text: text.replace("\n", " ")),
            stream=st.sampled_from(["true", "true", "false"]),
            response_format=st.sampled_from(["json", "text"]),
        )
    )
    parts = [f'name="{name}"\r\n\r\n{value}'.encode("utf-8", "replace") for name, value in fields.items()]
    sound = draw(st.binary(max_size=40))
    file = draw(
        st.sampled_from(['name="file"; filename="größe.wav"'] * 4 + ['name="file"', 'name="sound"; filename="x"'])
    )
    parts.append(file.encode() + b"\r\nContent-Type: audio/wav\r\n\r\n" + sound)
    opened = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; ".encode()
    body = b"".join(opened + part + b"\r\n" for part in parts)
    end: bytes = draw(st.sampled_from([f"--{_BOUNDARY}--\r\n".encode()] * 4 + [b""]))
    return body + end


_TYPES = st.sampled_from(
    ["application/json"] * 20
    + ["application/json; charset=utf-8", "text/plain", "APPLICATION/JSON", "application/x-ndjson"]
)
_MORE_HEADERS = _some(
    **{
        "accept": st.sampled_from(["text/event-stream", "*/*"]),
        "accept-encoding": st.just("gzip, deflate, br, zstd"),
        "user-agent": st.just("OpenAI/Python 3.57.0"),
        "x-request-id": st.just("chosen-by-the-client"),
        "x-stainless-retry-count": st.just("0"),
        "anthropic-version": st.just("2023-06-01"),
        "authorization": st.just("Bearer sk-anything"),
        "x-text": st.sampled_from(["größe".encode(), b"caf\xe9", b""]),
        "origin": st.just("http://page.example"),
        "cookie": st.just("a=1"),
        "te": st.just("trailers"),
    }
)
_QUERY = st.text("abcXYZ019=&%+;:/?@!$'()*,-._~[]|").map(lambda text: "?" + text)


@st.composite
def requests(draw: Callable[..., Any], method: str, path: str) -> Generated:
    """Requests to a path, tagged in every way and in none."""
    headers: dict[str, str | bytes] = draw(_MORE_HEADERS)
    if path in AUDIO and draw(st.integers(0, 9)):
        body, content_type = draw(_form()), f"multipart/form-data; boundary={_BOUNDARY}"
    else:
        body, content_type = draw(_json_body(path)) if method == "POST" else b"", draw(_TYPES)
    prefix = "".join(
        f"/{name}/{quote(draw(_TAG), safe='')}" for name in ("scenario", "session") if draw(st.integers(0, 3)) == 0
    )
    tags = draw(
        _some(
            **{
                "x-session-id": _TAG.map(str.encode),
                "x-scenario-id": _TAG.map(str.encode),
                "x-agent": st.just("planner"),
                "x-split": st.sampled_from(["eval", "train"]),
                "x-session-end": st.sampled_from(["true", "false"]),
            }
        )
    )
    query = draw(st.just("") | st.just("") | _QUERY)
    return Generated(method, path, body, {**headers, "content-type": content_type}, query, prefix, tags)
