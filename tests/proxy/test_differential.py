"""Promise 1 byte for byte and frame by frame: the same requests go to the fake directly and through the proxy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from proxy.dialects import DIALECTS
from proxy.dialects.documents import parse
from tests.fake_vllm import FakeVllm
from tests.fake_vllm.server import SECRET
from tests.proxy import raw
from tests.proxy.conftest import StartProxy
from tests.proxy.generated import AUDIO, Generated, requests
from tests.proxy.running import CHAT, RunningProxy, request
from tests.proxy.vllm_routes import PUBLIC

PATHS = [(method, path.replace("{response_id}", "resp_0")) for method, path in PUBLIC]
MISSING = ("/v2/embed", "/v1/audio/translations")
"""Not served by the fake; and it keeps no responses."""
SERVED = [(method, path) for method, path in PATHS if path not in MISSING and "resp_0" not in path]
Pair = tuple[FakeVllm, RunningProxy]

# Of the sessions of one process: what is drawn again finds them as it left them.
_GENERATES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def both(fake: FakeVllm, proxy: RunningProxy, asked: Generated, **more: str) -> tuple[raw.RawResponse, raw.RawResponse]:
    """vLLM's own answer, and the one that comes through the proxy."""
    headers = {**asked.headers, **more}
    direct = raw.ask(fake.url, asked.target, asked.body, headers, asked.method)
    through = raw.ask(proxy.url, asked.prefix + asked.target, asked.body, {**headers, **asked.tags}, asked.method)
    return direct, through


def assert_same(direct: raw.RawResponse, through: raw.RawResponse) -> None:
    assert direct.status == through.status, (direct.body, through.body)
    assert direct.body == through.body
    assert direct.whole == through.whole
    assert direct.foreign == through.foreign


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_generated_requests_are_answered_as_vllm_answers_them(
    fake: FakeVllm, proxy: RunningProxy, method: str, path: str
) -> None:
    seen = set()

    @_GENERATES
    @given(requests(method, path))
    def ask(asked: Generated) -> None:
        direct, through = both(fake, proxy, asked)
        assert_same(direct, through)
        earlier, later = fake.calls(path)[-2:]
        assert (earlier.method, earlier.query, earlier.body) == (later.method, later.query, later.body)
        assert later.body == asked.body
        seen.add(direct.status)
        fake.requests.clear()

    ask()
    served = (method, path) in SERVED
    assert (200 in seen) == served, "requests that are answered are among the generated ones"
    assert seen > {200} or not served, "and requests that are refused"


NONCE = b"0123456789abcdef" * 2


def unframed(answer: raw.RawResponse) -> raw.RawResponse:
    """A response of vLLM to a marked request, without what the plugin adds to it."""
    before, mark, rest = answer.body.partition(b"\x1e" + NONCE + b" ")
    length, _, rest = rest.partition(b"\n")
    body = before + rest[int(length) :] if mark else before
    sizes = {b"content-length": b"%d" % len(body)}
    fields = [(name, sizes.get(name, value)) for name, value in answer.headers if name != b"x-slipstream"]
    return replace(answer, headers=fields, body=body)


@pytest.mark.parametrize("path", DIALECTS)
def test_an_alias_is_answered_as_its_model_under_that_name(fake: FakeVllm, proxy: RunningProxy, path: str) -> None:
    seen = set()

    @_GENERATES
    @given(requests("POST", path))
    def ask(drawn: Generated) -> None:
        asked = replace(drawn, body=drawn.body.replace(b"base-model", b"agent"))
        document = parse(asked.body)
        named = isinstance(document, dict) and document.get("model") == "agent"
        mark = b"%b %b %b" % (SECRET.encode(), NONCE, b"base-model" if named else b"-")
        direct = raw.ask(fake.url, asked.target, asked.body, {**asked.headers, "x-slipstream": mark})
        through = raw.ask(proxy.url, asked.prefix + asked.target, asked.body, {**asked.headers, **asked.tags})
        assert_same(unframed(direct), through)
        seen.add(direct.status)

    ask()
    assert seen > {200}


METHODS = ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "POST"]


@pytest.mark.parametrize(("method", "path"), [*SERVED, ("GET", "/v1/models")])
def test_another_method_is_answered_as_vllm_answers_it(
    fake: FakeVllm, proxy: RunningProxy, method: str, path: str
) -> None:
    for other in METHODS:
        if other == method:
            continue
        direct, through = both(fake, proxy, Generated(other, path, b"{}", {"content-type": "application/json"}))
        assert direct.status == 405
        assert (direct.status, direct.body, direct.whole) == (through.status, through.body, through.whole)
        # The proxy answers it itself, without the headers that matter to nobody.
        assert [field for field in direct.foreign if field[0] not in (b"date", b"server", b"vary")] == through.foreign


SPEECH = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nsound\r\n'
    b'--b\r\nContent-Disposition: form-data; name="stream"\r\n\r\n%b\r\n--b--\r\n'
)
_TOOL = {"name": "größe", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
_ASKING: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "größe 日本"}]},
    "/v1/completions": {"prompt": ["größe 日本", "two"]},
    "/v1/responses": {"input": "größe 日本"},
    "/v1/messages": {"messages": [{"role": "user", "content": "größe 日本"}], "max_tokens": 60},
}
_MORE: dict[str, dict[str, dict[str, Any]]] = {
    CHAT: {
        "tools": {"tools": [{"type": "function", "function": _TOOL}]},
        "three": {"n": 3, "stream_options": {"include_usage": True}},
        "reasoning": {"reasoning_effort": "low"},
    },
    "/v1/completions": {"three": {"n": 3, "logprobs": 1}},
    "/v1/responses": {
        "tools": {"tools": [{"type": "function", **_TOOL}]},
        "reasoning": {"reasoning": {"effort": "low"}},
    },
    "/v1/messages": {
        "tools": {"tools": [{"name": "größe", "input_schema": _TOOL["parameters"]}]},
        "reasoning": {"thinking": {"type": "enabled"}},
    },
}


def asking(path: str, *, stream: bool, more: Mapping[str, Any] | None = None) -> Generated:
    """A request to a path that can stream."""
    if path in AUDIO:
        body = SPEECH % (b"true" if stream else b"false")
        return Generated("POST", path, body, {"content-type": "multipart/form-data; boundary=b"})
    document = {"model": "base-model", "stream": stream, **_ASKING[path], **(more or {})}
    if not stream:
        document.pop("stream_options", None)
    return Generated("POST", path, orjson.dumps(document), {"content-type": "application/json"})


STREAMS = {
    **{f"{path} {name}": (path, more) for path, found in _MORE.items() for name, more in {"text": {}, **found}.items()},
    AUDIO[0]: (AUDIO[0], {}),
}


@pytest.mark.parametrize(("path", "more"), STREAMS.values(), ids=STREAMS.keys())
def test_frames_leave_as_they_arrive(fake: FakeVllm, proxy: RunningProxy, path: str, more: Mapping[str, Any]) -> None:
    """The fake writes a frame (or heartbeat) only when the one before it is here: none can wait for what follows."""
    asked = asking(path, stream=True, more=more)
    plain = raw.ask(fake.url, asked.target, asked.body, {**asked.headers, "x-fake-fault": "heartbeat"})
    frames = [part + b"\n\n" for part in plain.body.removesuffix(b"\n\n").split(b"\n\n")]
    assert frames[::2] == [b": keep-alive\n\n"] * (len(frames) // 2)
    for url, tags in ((fake.url, {}), (proxy.url, {"x-session-id": "steps"}), (proxy.url, {})):
        with raw.connect(url) as connection:
            raw.send(connection, path, asked.body, {**asked.headers, **tags, "x-fake-fault": "step"})
            assert list(_stepped(fake, connection, len(frames))) == frames


def _stepped(fake: FakeVllm, connection: Any, number: int) -> Iterator[bytes]:
    """The chunks of a response whose parts are let go one after another."""
    fake.step()
    rest = raw.read_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")[2]
    for count in range(1, number + 1):
        while (found := re.match(rb"([0-9a-f]+)\r\n", rest)) is None or len(rest) < found.end() + int(found[1], 16) + 2:
            rest += raw.receive(connection)
        size = int(found[1], 16)
        yield rest[found.end() : found.end() + size]
        rest = rest[found.end() + size + 2 :]
        if count < number:
            assert rest == b"", "nothing comes before its time"
            fake.step()
    while rest != b"0\r\n\r\n":
        rest += raw.receive(connection)


FAULTS = [
    "none",
    "bad-request",
    "rate-limit",
    "bad-gateway",
    "redirect",
    "error-frame",
    "no-done",
    "empty",
    "heartbeat",
    "drip:0.001",
    "huge",
    "quote",
    "crlf",
    "cookies",
    "cut-done:8",
    "split:1",
    "split:3",
    "split:17",
    "split:1000",
    "reset-body",
    "close-body",
    "close-chunk",
    "long-length",
]
CUT = ("reset-body", "close-body", "close-chunk", "long-length")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("path", [*DIALECTS, AUDIO[0]])
def test_faults_reach_the_client_as_they_are(
    fake: FakeVllm, proxy: RunningProxy, path: str, fault: str, stream: bool
) -> None:
    direct, through = both(fake, proxy, asking(path, stream=stream), **{"x-fake-fault": fault})
    if fault not in CUT:
        assert_same(direct, through)
        return
    # Where it breaks off differs, since the plugin's frame is a part of the body that is cut.
    assert (direct.status, direct.whole, through.whole) == (through.status, False, False)
    shorter, longer = sorted((direct.body, through.body), key=len)
    assert longer.startswith(shorter)


PAGE = "http://page.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-session-id",
}
ORIGINS = {
    "none": (),
    "all": ("*",),
    "the page's": (PAGE, "http://other.example"),
    "another": ("http://other.example",),
}


@pytest.fixture(params=ORIGINS.values(), ids=list(ORIGINS), scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A vLLM that is open to pages of some origins, and a proxy that asks for keys."""
    with FakeVllm(allowed_origins=request.param) as fake:
        proxy = RunningProxy(tmp_path_factory.mktemp("opened") / "data", (fake.url,), fake.secret)
        yield fake, proxy
        proxy.stop()


@pytest.mark.parametrize("path", [path for _, path in [*PATHS, ("GET", "/v1/models")]])
def test_a_browsers_preflight_is_answered_by_vllm(opened: Pair, path: str) -> None:
    for headers in (PREFLIGHT, {**PREFLIGHT, "access-control-request-method": "CONNECT"}, {**PREFLIGHT, "origin": "x"}):
        assert_same(*both(*opened, Generated("OPTIONS", path, b"", headers, "?a=1", "/session/s")))


@pytest.mark.parametrize("path", [path for _, path in SERVED])
def test_a_browser_reads_vllms_answers(opened: Pair, path: str) -> None:
    assert_same(*both(*opened, Generated("POST", path, b"{", {"origin": PAGE})))


def _openings(answer: raw.RawResponse) -> list[tuple[bytes, bytes]]:
    return [field for field in answer.foreign if field[0].startswith(b"access-control") or field[0] == b"vary"]


def test_a_browser_reads_the_proxys_own_answers_where_it_reads_vllms(opened: Pair) -> None:
    fake, proxy = opened
    theirs = raw.ask(fake.url, "/v1/models", b"", {"origin": PAGE}, "GET")
    reward = b'{"value": 1}'
    for method, path, body, status in (
        ("GET", "/v1/models", b"", 200),
        ("POST", "/v1/sessions/s/reward", reward, 200),
        ("PUT", CHAT, b"", 405),
        ("POST", "/nothing", b"", 404),
        ("POST", "/session/%00" + CHAT, b"", 400),
    ):
        mine = raw.ask(proxy.url, path, body, {"origin": PAGE}, method)
        assert (mine.status, _openings(mine)) == (status, _openings(theirs))
    asked = raw.ask(proxy.url, "/v1/sessions/s/reward", b"", PREFLIGHT, "OPTIONS")
    assert (asked.status, _openings(asked)) == (
        (direct := raw.ask(fake.url, "/v1/models", b"", PREFLIGHT, "OPTIONS")).status,
        _openings(direct),
    )
    without = raw.ask(proxy.url, "/v1/models", b"", method="GET")
    assert _openings(without) == []


@pytest.mark.parametrize("path", ["/health", "/metrics", "/sleep", "/v1/load_lora_adapter", "/v1/chat/completions/x"])
def test_no_preflight_reaches_what_is_not_forwarded(opened: Pair, path: str) -> None:
    _, proxy = opened
    assert raw.ask(proxy.url, path, b"", PREFLIGHT, "OPTIONS").status in (404, 405)


def test_a_preflight_needs_no_key_and_a_refusal_can_be_read(start_proxy: StartProxy, own_fake: FakeVllm) -> None:
    proxy = start_proxy()
    assert proxy.answer("keys", "POST", json={"name": "ann"}).status_code == 201
    asked = both(own_fake, proxy, Generated("OPTIONS", CHAT, b"", PREFLIGHT))
    assert_same(*asked)
    refused = raw.ask(proxy.url, CHAT, request(), {"origin": PAGE})
    assert (refused.status, refused.all(b"vary")) == (401, [b"Origin"])
    own_fake.stop()
    assert raw.ask(proxy.url, CHAT, b"", PREFLIGHT, "OPTIONS").status == 502
    assert raw.ask(proxy.url, CHAT, request(), {"origin": PAGE}).status == 401
