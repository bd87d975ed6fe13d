"""Secrets are nowhere: canaries are sent in every place that a secret can have, and looked for in all that is left."""

from __future__ import annotations

import base64
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from storage import calls
from storage.journal import Kind
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import CHAT, DIALECTS, ProxyProcess, Recorded, request, tags, until

HEADERS = ("authorization", "api-key", "x-goog-api-key", "x-auth-token", "cookie", "proxy-authorization")
QUERY = ("api_key", "key", "token", "access_token")
FAULTS = (
    "none",
    "echo:400",
    "echo:401",
    "echo:500",
    "cookies",
    "reset-head",
    "reset-body",
    "error-frame",
    "rate-limit",
)
UPSTREAMS_COOKIES = b"; Path=/"
"""What the fake's `Set-Cookie` have in common."""


@dataclass
class Canaries:
    """Made-up secrets by the place where each is put."""

    planted: dict[str, str] = field(default_factory=dict)

    def plant(self, place: str) -> str:
        return self.planted.setdefault(place, f"canary-{secrets.token_hex(12)}")

    def found_in(self, data: bytes) -> list[str]:
        """The places whose canary is in ``data``, in whatever spelling."""
        return [place for place, text in self.planted.items() if any(form in data for form in _forms(text.encode()))]


def _forms(secret: bytes) -> list[bytes]:
    coded = [base64.b64encode(b"x" * shift + secret)[4 if shift else 0 : -4] for shift in range(3)]
    return [secret, secret[::-1], secret.hex().encode(), quote(secret, safe="").encode(), *coded]


@dataclass
class Stage:
    """A proxy through which everything has gone, and all that it said."""

    canaries: Canaries
    vllm: FakeVllm
    proxy: ProxyProcess
    journal: bytes = b""
    """Every segment, before what is in it was in the database."""
    answers: list[bytes] = field(default_factory=list)
    """What agents and others were answered, heads and all."""
    shown: list[bytes] = field(default_factory=list)
    """What the admin API shows."""

    @property
    def headers(self) -> dict[str, str]:
        return {name: self.canaries.plant(f"header {name}") for name in HEADERS}

    @property
    def query(self) -> str:
        return "?" + "&".join(f"{name}={self.canaries.plant(f'query {name}')}" for name in QUERY)

    def ask(self, method: str, path: str, **options: object) -> httpx.Response | None:
        try:
            answer = self.proxy.client.request(method, path, **options)  # type: ignore[arg-type]
        except httpx.TransportError:  # a fault that the test asked for
            return None
        head = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
        self.answers.append(head.encode() + answer.content)
        return answer

    def admin(self, path: str, method: str = "GET", **options: object) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.canaries.plant('the admin key')}"}
        answer = self.proxy.client.request(method, f"/admin/{path}", headers=headers, **options)  # type: ignore[arg-type]
        self.shown.append(answer.content)
        return answer


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    canaries = Canaries()
    with FakeVllm(secret=canaries.plant("the plugin's secret")) as vllm:
        settings = {
            "SLIPSTREAM_ADMIN_KEY": canaries.plant("the admin key"),
            "SLIPSTREAM_UPSTREAM_API_KEY": canaries.plant("vLLM's key"),
            "SLIPSTREAM_JUDGE_API_KEY": canaries.plant("the judge's key"),
            # As loud as it gets.
            "PYTHONASYNCIODEBUG": "1",
            "PYTHONDEVMODE": "1",
            "PYTHONWARNINGS": "always",
        }
        proxy = ProxyProcess(tmp_path_factory.mktemp("canaries") / "data", vllm.url, vllm.secret or "", **settings)
        try:
            proxy.wait()
            stage = Stage(canaries, vllm, proxy)
            play(stage)
            yield stage
        finally:
            proxy.kill()


def play(stage: Stage) -> None:
    key = stage.proxy.client.post(
        "/admin/keys",
        json={"name": "ann"},
        headers={"authorization": f"Bearer {stage.canaries.plant('the admin key')}"},
    ).json()["key"]
    stage.canaries.planted["a client key"] = key
    recorded = Recorded(stage.proxy.data)
    recorded.db.execute("BEGIN IMMEDIATE")  # nothing leaves the journal meanwhile
    calls_of_agents(stage, key)
    what_is_refused(stage, key)
    with stage.vllm.failing("/v1/models", "echo:403"):
        until(lambda: b"answered with 403" in stage.proxy.client.get("/ready").content)
        stage.ask("GET", "/ready")
        stage.admin("status")
        stage.ask("POST", CHAT, content=request(), headers={"x-api-key": key})
    stage.vllm.stop()
    until(lambda: b"does not answer" in stage.proxy.client.get("/ready").content)
    for path, body in DIALECTS.items():
        stage.ask("POST", path + stage.query, json={"model": "agent", **body}, headers={"x-api-key": key})
    for segment in sorted((stage.proxy.data / "journal").glob("*.segment")):
        stage.journal += segment.read_bytes()
    recorded.db.execute("COMMIT")
    wanted = stage.journal.count(b"SLJ2" + bytes([Kind.END]))
    until(lambda: recorded.db.number("SELECT count(*) FROM calls") >= wanted - 1 > 0)
    recorded.db.close()
    for path in ("status", "sessions", "sessions/s?owner=ann", "groups", "runs", "versions", "keys", "openapi.json"):
        stage.admin(path)
    for path in ("/metrics", "/ready", "/health", "/admin/docs"):
        stage.ask("GET", path)


def calls_of_agents(stage: Stage, key: str) -> None:
    for (path, body), stream, fault in itertools.product(DIALECTS.items(), (False, True), FAULTS):
        asked = {"model": "agent", "stream": stream, **body}
        for marks in (tags("s", fault), {"x-fake-fault": fault}):
            for given in ({**stage.headers, "x-api-key": key}, {**stage.headers, "authorization": f"Bearer {key}"}):
                stage.ask("POST", path + stage.query, json=asked, headers={**given, **marks})
    owned = {**stage.headers, "x-api-key": key}
    stage.ask("POST", CHAT, content=request("a canary in the body, as found-it-there"), headers=owned | tags("s"))
    stage.ask("POST", "/v1/embeddings" + stage.query, json={"model": "base-model", "input": "x"}, headers=owned)
    stage.ask("GET", "/v1/models" + stage.query, headers=owned)
    stage.ask("POST", "/v1/sessions/s/reward" + stage.query, json={"value": 1}, headers=owned)
    stage.ask("POST", "/v1/sessions/s/end" + stage.query, headers=owned)


def what_is_refused(stage: Stage, key: str) -> None:
    wrong = stage.canaries.plant("a wrong key")
    for path in (CHAT, "/v1/messages", "/v1/models", "/nothing"):
        for given in ({"authorization": f"Bearer {wrong}"}, {"x-api-key": wrong}, {"authorization": wrong}):
            stage.ask("POST", path + stage.query, content=request(), headers={**stage.headers, **given})
    for path in ("status", "keys", "sessions", "nothing"):
        for text in (f"Bearer {wrong}", wrong, f"Basic {wrong}"):
            stage.ask("GET", f"/admin/{path}{stage.query}", headers={"authorization": text})
    stage.admin(f"keys{stage.query}", "POST", json={"name": "bad name", "key": wrong})
    stage.admin(f"keys{stage.query}", "POST", content=b"{" + wrong.encode())
    stage.admin(f"train{stage.query}", "POST", json={"settings": {}})
    owned = {**stage.headers, "x-api-key": key}
    for marks in (tags("a" * 257), tags("s", x_split="both"), {"x-filler": wrong * 3000}):
        stage.ask("POST", CHAT + stage.query, content=request(), headers={**owned, **marks})
    for path in ("/v1/load_lora_adapter", "/nothing", CHAT):
        stage.ask("PUT", path + stage.query, content=request(), headers=owned)
    stage.ask("POST", CHAT + stage.query, content=request(n=1000), headers=owned)
    with raw.connect(stage.proxy.url) as connection:
        connection.sendall(f"GET {CHAT}?key={wrong} HTTP/9\r\nauthorization: Bearer {wrong}\r\n\x00\r\n\r\n".encode())
        stage.answers.append(raw.read_all(connection))


def test_the_search_finds_what_is_there(stage: Stage) -> None:
    """Bodies are the agents' own: what is in one is recorded, in a journal and a database that are searched below."""
    assert b"found-it-there" in stage.journal
    recorded = Recorded(stage.proxy.data)
    numbers = [row["seq"] for row in recorded.db.all("SELECT seq FROM calls")]
    assert any(b"found-it-there" in calls.body(recorded.db, seq) for seq in numbers)
    assert len(numbers) > 4 * 2 * len(FAULTS) * 4
    echoes = [calls.body(recorded.db, seq, "response") for seq in numbers]
    assert (
        sum(b"x-slipstream: ***" in echo and b"authorization: Bearer ***" in echo for echo in echoes) >= 4 * 2 * 3 * 4
    )
    assert any(UPSTREAMS_COOKIES in answer for answer in stage.answers), "vLLM's cookies reach the agent"
    recorded.db.close()
    for text in (b"a=canary", stage.canaries.planted["vLLM's key"].encode().hex().encode()):
        assert stage.canaries.found_in(text) == (["vLLM's key"] if text != b"a=canary" else [])


def test_nothing_is_in_the_journal(stage: Stage) -> None:
    assert stage.canaries.found_in(stage.journal) == []
    assert UPSTREAMS_COOKIES not in stage.journal


def test_nothing_is_in_any_file(stage: Stage) -> None:
    files = [path for path in stage.proxy.data.rglob("*") if path.is_file()]
    assert {"slipstream.db", "slipstream.db-wal"} <= {path.name for path in files}
    for path in files:
        assert stage.canaries.found_in(path.read_bytes()) == [], path


def test_nothing_is_in_the_database_decoded(stage: Stage) -> None:
    recorded = Recorded(stage.proxy.data)
    tables = [row["name"] for row in recorded.db.all("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        for row in recorded.db.all(f"SELECT * FROM {table}"):
            assert stage.canaries.found_in(repr(tuple(row)).encode()) == [], table
    for row in recorded.db.all("SELECT seq FROM calls"):
        for column in ("request", "response", "prompt_ids"):
            body = calls.body(recorded.db, row["seq"], column)
            assert stage.canaries.found_in(body) == [], (row["seq"], column)
            assert UPSTREAMS_COOKIES not in body
    recorded.db.close()


def test_nothing_is_in_what_the_process_says(stage: Stage) -> None:
    said = stage.proxy.log.read_bytes()
    assert said, "it says something"
    assert stage.canaries.found_in(said) == []


def test_nothing_is_in_what_the_admin_api_shows(stage: Stage) -> None:
    assert len(stage.shown) > 8
    for answer in stage.shown:
        assert stage.canaries.found_in(answer) == []


def test_nothing_is_in_an_answer(stage: Stage) -> None:
    """Neither our secrets nor what the client itself sent comes back in an answer of the proxy, or through it."""
    for answer in stage.answers:
        assert stage.canaries.found_in(answer) == [], answer[:300]


START = [
    {"SLIPSTREAM_UPSTREAM": "https://user:{}@host"},
    {"SLIPSTREAM_UPSTREAM": "https://host/?api_key={}"},
    {"SLIPSTREAM_HOST": "0.0.0.0", "SLIPSTREAM_ADMIN_KEY": "{}"},  # noqa: S104 - refused without keys
    {"SLIPSTREAM_PORT": "0", "SLIPSTREAM_ADMIN_KEY": "{}", "SLIPSTREAM_UPSTREAM_API_KEY": "{}"},
    {"SLIPSTREAM_ADMIN_KEYS": "{}"},
    {"SLIPSTREAM_SESSION": "{}"},
]


@pytest.mark.parametrize("settings", START, ids=range(len(START)))
def test_a_start_that_fails_tells_no_secret(tmp_path: Path, settings: dict[str, str]) -> None:
    canaries = Canaries()
    given = {name: value.format(canaries.plant(name)) for name, value in settings.items()}
    proxy = ProxyProcess(tmp_path / "data", "http://127.0.0.1:9", canaries.plant("the plugin's secret"), **given)
    try:
        assert proxy.process.wait(120) != 0
    finally:
        proxy.kill()
    said = proxy.log.read_bytes()
    assert b"SLIPSTREAM_" in said
    assert canaries.found_in(said) == []
