"""Promise 1 on real vLLM: the same requests go to it directly and through the proxy, and are answered alike.

Greedy, one after another, so that vLLM answers alike itself. What is compared is joined per choice (`joined.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from proxy.dialects import is_stream
from scripts.small_model import NAME
from tests.e2e.conftest import Report
from tests.e2e.joined import joined
from tests.e2e.service import Service

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
Strategy = st.SearchStrategy

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
OURS = {"x-call-id", "x-session-id", "x-policy-version"}
_JSON = {"content-type": "application/json"}
_TIMES = {"date", "content-length"}
_MINUTES = 300


@dataclass(frozen=True, slots=True)
class Both:
    """vLLM, and the proxy before it."""

    direct: httpx.Client
    through: httpx.Client

    def ask(self, method: str, path: str, **sent: Any) -> tuple[httpx.Response, httpx.Response]:
        """Both answers; status and headers have been compared."""
        sent = {"headers": _JSON, **sent}
        answers = self.direct.request(method, path, **sent), self.through.request(method, path, **sent)
        mine, its = ({k: v for k, v in one.headers.items() if k not in _TIMES | OURS} for one in reversed(answers))
        assert answers[0].status_code == answers[1].status_code, [one.text for one in answers]
        assert mine == its
        return answers


@pytest.fixture(scope="module")
def both(service: Service) -> Iterator[Both]:
    tags = {"x-session-id": "differential", "x-scenario-id": "differential"}
    with (
        httpx.Client(base_url=service.vllm_url, timeout=_MINUTES) as direct,
        httpx.Client(base_url=service.url, timeout=_MINUTES, headers=tags) as through,
    ):
        yield Both(direct, through)


def _object(**fields: Strategy[Any]) -> Strategy[Json]:
    return st.fixed_dictionaries(fields)


def _some(**fields: Strategy[Any]) -> Strategy[Json]:
    return st.fixed_dictionaries({}, optional=fields)


TEXT = st.sampled_from(
    [
        "Name a colour.",
        "Is water wet?",
        "Repeat: größe 日本 😀",
        "",
        "a\x00b",
        "Count to five.",
        "data: [DONE]\n\n",
    ]
)
_PARTS = st.lists(_object(type=st.just("text"), text=TEXT), min_size=1, max_size=2)
_SCHEMA = {"type": "object", "properties": {"way": {"enum": ["north", "south"]}}, "required": ["way"]}
_SAMPLING = {
    "top_p": st.sampled_from([1, 0.5]),
    "top_k": st.sampled_from([0, 5]),
    "seed": st.just(7),
    "presence_penalty": st.just(0.5),
    "stop": st.sampled_from(["the", ["a", "e"]]),
    "unheard_of": st.sampled_from([{"deep": [1, None]}, 10**30]),
}
_STREAM_OPTIONS = st.sampled_from([{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
_LENGTH = st.sampled_from([1, 8, 12])
_TURNS = st.lists(_object(role=st.sampled_from(["user", "assistant"]), content=TEXT | _PARTS), min_size=1, max_size=2)
_INPUTS = st.lists(_object(type=st.just("input_text"), text=TEXT), min_size=1, max_size=2)
_ITEMS = st.lists(_object(role=st.just("user"), content=TEXT | _INPUTS), min_size=1, max_size=2)
_FUNCTION = {"name": "look", "description": "Looks.", "parameters": _SCHEMA}

ASKED: dict[str, tuple[dict[str, Strategy[Any]], dict[str, Strategy[Any]]]] = {
    CHAT: (
        {
            "messages": st.lists(
                _object(role=st.sampled_from(["user", "system", "assistant", "narrator"]), content=TEXT | _PARTS),
                min_size=1,
                max_size=2,
            ),
            "max_tokens": _LENGTH,
        },
        {
            **_SAMPLING,
            "logprobs": st.just(True),
            "top_logprobs": st.sampled_from([0, 2]),
            "return_token_ids": st.just(True),
            "tools": st.just([{"type": "function", "function": _FUNCTION}]),
            "stream_options": _STREAM_OPTIONS,
        },
    ),
    COMPLETIONS: (
        {"prompt": TEXT | st.just([504, 6376, 314]), "max_tokens": _LENGTH},
        {**_SAMPLING, "logprobs": st.sampled_from([0, 2]), "echo": st.just(True), "stream_options": _STREAM_OPTIONS},
    ),
    RESPONSES: (
        {"input": TEXT | _ITEMS, "max_output_tokens": _LENGTH},
        {
            "top_p": _SAMPLING["top_p"],
            "instructions": TEXT,
            "metadata": st.just({"user": "größe"}),
            "tools": st.just([{"type": "function", **_FUNCTION}]),
        },
    ),
    MESSAGES: (
        {"messages": _TURNS, "max_tokens": _LENGTH},
        {
            "top_p": _SAMPLING["top_p"],
            "system": TEXT,
            "stop_sequences": st.just(["the"]),
            "tools": st.just([{"name": "look", "description": "Looks.", "input_schema": _SCHEMA}]),
        },
    ),
}
"""By dialect: the fields that a request has, and those that it may have."""


ODD: dict[str, Strategy[Any]] = {
    "model": st.sampled_from(["nobody", "", 7]),
    "temperature": st.sampled_from([-1, 9, "warm", float("nan")]),
    "top_p": st.sampled_from([0, 2, "x"]),
    "presence_penalty": st.just(7),
    "stop": st.just(7),
    "n": st.sampled_from([0, 2]),
    "stream": st.just("x"),
    "stream_options": st.just(7),
    "messages": st.sampled_from([[], "x", [{}], [{"role": "user", "content": "\ud800"}]]),
    "prompt": st.sampled_from([[], None, "\ud800", [-1]]),
    "input": st.sampled_from([None, [{}], "\ud800"]),
    "max_tokens": st.sampled_from([0, -1, 10**9]),
    "max_output_tokens": st.sampled_from([0, 10**9]),
    "tools": st.sampled_from([7, [{}]]),
    "background": st.just(True),
}
"""Values that a field should not have."""


@st.composite
def _bodies(draw: Any, path: str) -> Json:
    needed, optional = ASKED[path]
    stream = draw(st.booleans())
    found = {"model": NAME, "temperature": 0, "stream": stream, **draw(_object(**needed)), **draw(_some(**optional))}
    if not stream:
        found.pop("stream_options", None)
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from([name for name in ODD if name in found or name in ("n", "background")]))
        found[name] = draw(ODD[name])
    return found


@pytest.mark.parametrize("path", ASKED)
def test_generated_requests_are_answered_alike(both: Both, path: str, report: Report) -> None:
    statuses: list[int] = []

    @settings(
        max_examples=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_bodies(path))
    def ask(body: Json) -> None:
        sent = json.dumps(body).encode()
        direct, through = both.ask("POST", path, content=sent)
        statuses.append(direct.status_code)
        if direct.status_code != 200:
            assert direct.content == through.content
            return
        stream = is_stream(direct.content)
        its, mine = joined(direct.content, stream=stream), joined(through.content, stream=stream)
        if its != mine:  # is it vLLM that differs from itself?
            again = both.direct.post(path, content=sent, headers=_JSON)
            assert mine == joined(again.content, stream=stream)

    ask()
    assert statuses.count(200) >= 10
    assert len(set(statuses)) > 1
    report(f"{path}: {statuses.count(200)} of {len(statuses)} generated requests were answered, the others refused")


WITHOUT_TOKENS: dict[str, tuple[str, Json]] = {
    "text": ("/tokenize", {"model": NAME, "prompt": "größe 日本 😀"}),
    "a conversation": ("/tokenize", {"model": NAME, "messages": [{"role": "user", "content": "Hello"}]}),
    "ids": ("/detokenize", {"model": NAME, "tokens": [504, 6376, 314]}),
    "count": ("/v1/messages/count_tokens", {"model": NAME, "messages": [{"role": "user", "content": "Hello"}]}),
}


@pytest.mark.parametrize(("path", "body"), WITHOUT_TOKENS.values(), ids=WITHOUT_TOKENS.keys())
def test_what_generates_nothing_is_answered_alike(both: Both, path: str, body: Json) -> None:
    direct, through = both.ask("POST", path, json=body)
    assert (direct.status_code, direct.content) == (200, through.content)


QUESTION = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "max_tokens": 1}
REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b'{"model": ',
    "no object": b"[1]",
    "no UTF-8": b'{"model": "caf\xe9"}',
    "UTF-16": '{"model": "x"}'.encode("utf-16"),
    "no field at all": b"{}",
    "another model": json.dumps({"model": "nobody", **QUESTION}).encode(),
    "no model's name": json.dumps({"model": 7, **QUESTION}).encode(),
    "another type": json.dumps({"model": NAME, **QUESTION, "temperature": "warm"}).encode(),
    "too hot": json.dumps({"model": NAME, **QUESTION, "temperature": 9}).encode(),
    "NaN": json.dumps({"model": NAME, **QUESTION, "temperature": float("nan")}).encode(),
    "an image": json.dumps(
        {
            "model": NAME,
            "max_tokens": 1,
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}]}
            ],
        }
    ).encode(),
    "too long": json.dumps({"model": NAME, **QUESTION, "max_tokens": 10**9, "max_output_tokens": 10**9}).encode(),
}
OTHERS = ("/v1/embeddings", "/rerank", "/v1/score", "/classify", "/pooling", "/tokenize", "/v1/audio/transcriptions")


@pytest.mark.parametrize("path", [*ASKED, "/v1/messages/count_tokens", *OTHERS])
def test_what_vllm_refuses_is_refused_alike(both: Both, path: str) -> None:
    for name, body in REFUSED.items():
        direct, through = both.ask("POST", path, content=body)
        if direct.status_code != 200:
            assert direct.content == through.content, name


PAGE = {"origin": "http://page.example", "access-control-request-method": "POST"}


@pytest.mark.parametrize("path", [*ASKED, "/tokenize", "/v1/models"])
def test_a_browsers_preflight_is_answered_alike(both: Both, path: str) -> None:
    asked = {**PAGE, "access-control-request-headers": "authorization"}
    direct, through = both.ask("OPTIONS", path, headers=asked)
    assert (direct.status_code, direct.text, through.text) == (400, *["Disallowed CORS origin"] * 2)  # as by default
    assert direct.headers["access-control-max-age"] == "600"


@pytest.mark.parametrize("path", ["/v1/responses/resp_0", "/v1/responses/resp_0/cancel"])
def test_a_response_that_is_not_there(both: Both, path: str) -> None:
    direct, through = both.ask("POST" if path.endswith("cancel") else "GET", path)
    assert (direct.status_code // 100, direct.content) == (4, through.content)


def test_the_models_are_vllms_and_the_aliases(both: Both) -> None:
    its, mine = (client.get("/v1/models").json()["data"] for client in (both.direct, both.through))
    by_name = {model["id"]: model for model in mine}
    assert [model["id"] for model in mine if model["owned_by"] == "slipstream"] == ["agent"]
    for model in its:
        for field in ("created", "permission"):  # made anew for every answer
            model.pop(field)
            by_name[model["id"]].pop(field)
        assert by_name[model["id"]] == model
