"""Client keys: who is asked for one, whose each thing is, and how keys come and go."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy import keys
from proxy.app import App
from proxy.errors import CannotServe, PublicWithoutKeys
from proxy.settings import ProxySettings
from scripts import cli
from storage import sessions
from storage.database import Database
from storage.types import Identity, Owner, Session
from tests.fake_vllm import FakeVllm
from tests.proxy.conftest import StartProxy
from tests.proxy.running import CHAT, Recorded, RunningProxy, request, tags, until
from tests.storage.damage import damage


@pytest.fixture
def keyed(start_proxy: StartProxy) -> tuple[RunningProxy, str, str]:
    """A proxy, and the keys of the owners ann and bob."""
    proxy = start_proxy()
    return proxy, make(proxy, "ann"), make(proxy, "bob")


def make(proxy: RunningProxy, name: str) -> str:
    answer = proxy.answer("keys", "POST", json={"name": name})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["name"] == name
    key: str = made["key"]
    return key


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("given", [{}, bearer("anything"), {"x-api-key": "anything"}])
def test_without_keys_everyone_is_the_default_owner(
    proxy: RunningProxy, recorded: Recorded, sid: str, given: dict[str, str]
) -> None:
    assert proxy.chat(headers={**tags(sid), **given}).status_code == 200
    until(lambda: recorded.session(sid))


ASKED = [
    ("POST", CHAT),
    ("POST", "/v1/messages"),
    ("POST", "/session/s/v1/messages/count_tokens"),
    ("POST", "/tokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/agent"),
    ("GET", "/v1/responses/resp_1"),
    ("POST", "/v1/sessions/s/end"),
    ("POST", "/v1/sessions/s/reward"),
    ("GET", "/nothing"),
]
WRONG: list[dict[str, Any]] = [
    {},
    {"authorization": "Bearer"},
    bearer("slip-wrong"),
    {"authorization": "slip-wrong"},
    {"authorization": "Basic slip-wrong"},
    {"x-api-key": "größe".encode()},
    {"cookie": "authorization=Bearer x"},
]


@pytest.mark.parametrize("given", WRONG)
def test_with_keys_nothing_is_told_to_others(
    start_proxy: StartProxy, own_fake: FakeVllm, given: dict[str, Any]
) -> None:
    proxy = start_proxy()
    key = make(proxy, "ann")
    asked = len(own_fake.calls(CHAT))
    for method, path in ASKED:
        answer = proxy.client.request(method, path, headers=given, content=request())
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        error = answer.json()["error"]
        assert (error["type"], "x-api-key: <key>" in error["message"]) == ("authentication_error", True)
        assert (answer.json().get("type") == "error") == ("messages" in path), "Anthropic's clients read another form"
        assert key not in answer.text
    for near in (key[:-1], key + "x", key.upper(), f'"{key}"'):
        assert proxy.chat(headers=bearer(near)).status_code == 401
    assert len(own_fake.calls(CHAT)) == asked
    assert proxy.client.get("/health").status_code == 200


@pytest.mark.parametrize("form", ["authorization", "lower", "x-api-key", "both"])
def test_a_key_is_sent_in_either_header(keyed: tuple[RunningProxy, str, str], own_fake: FakeVllm, form: str) -> None:
    proxy, ann, _ = keyed
    forms = {
        "authorization": bearer(ann),
        "lower": {"authorization": f"bearer  {ann}"},
        "x-api-key": {"x-api-key": ann},
        "both": {"x-api-key": ann, **bearer("a dummy that some clients send")},
    }
    answer = proxy.chat(headers={**tags("s"), **forms[form]})
    assert answer.status_code == 200
    with contextlib.closing(Database(proxy.data)) as db:
        until(lambda: _session(db, "ann", "s"))
        assert _session(db, "default", "s") is None
    for received in own_fake.calls(CHAT):
        assert ann not in str(received.headers)


def test_one_session_id_of_two_owners_is_two_sessions(keyed: tuple[RunningProxy, str, str]) -> None:
    proxy, ann, bob = keyed
    for key, number in ((ann, 1), (bob, 2)):
        for _ in range(number):
            assert proxy.chat(headers={**tags("same"), **bearer(key)}).status_code == 200
    with contextlib.closing(Database(proxy.data)) as db:
        for owner, number in (("ann", 1), ("bob", 2)):
            until(lambda owner=owner, number=number: _calls(db, owner, "same") == number)  # type: ignore[misc]
    listed = proxy.admin("sessions")["items"]
    assert sorted((item["owner"], item["session_id"]) for item in listed) == [("ann", "same"), ("bob", "same")]
    (item,) = proxy.admin("sessions?owner=bob")["items"]
    assert (item["owner"], item["calls"]) == ("bob", 2)
    assert proxy.admin("sessions?owner=nobody")["items"] == []
    assert len(proxy.admin("sessions/same?owner=bob")["calls"]) == 2
    assert proxy.answer("sessions/same").status_code == 404, "of the owner `default` there is none"


def test_a_client_ends_and_rewards_its_own_sessions_only(keyed: tuple[RunningProxy, str, str]) -> None:
    proxy, ann, bob = keyed
    proxy.chat(headers={**tags("s"), **bearer(ann)})
    with contextlib.closing(Database(proxy.data)) as db:
        until(lambda: _calls(db, "ann", "s") == 1)
        others = proxy.client.post("/v1/sessions/s/end", headers=bearer(bob))
        assert (others.status_code, others.json()["error"]["message"]) == (404, "there is no session s")
        # It waits for a session of bob's own.
        assert proxy.client.post("/v1/sessions/s/reward", json={"value": 0.0}, headers=bearer(bob)).status_code == 200
        assert proxy.client.post("/v1/sessions/s/reward", json={"value": 1.0}, headers=bearer(ann)).status_code == 200
        assert proxy.client.post("/v1/sessions/s/end", headers=bearer(ann)).status_code == 200
        until(lambda: (found := _session(db, "ann", "s")) and found.state == "closed")
        shown = until(lambda: _rewarded(proxy, "sessions/s?owner=ann"))
        assert [reward["value"] for reward in shown["rewards"]] == [1.0]
        proxy.chat(headers={**tags("s"), **bearer(bob)})
        until(lambda: _calls(db, "bob", "s") == 1)
        assert [reward["value"] for reward in proxy.admin("sessions/s?owner=bob")["rewards"]] == [0.0]


def test_keys_are_listed_and_removed_and_never_shown_again(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    made = {name: make(proxy, name) for name in ("b", "a", "c.1-x_Y")}
    assert len(set(made.values())) == 3
    page = proxy.admin("keys?limit=2")
    assert ([item["name"] for item in page["items"]], page["cursor"]) == (["a", "b"], "b")
    assert all(set(item) == {"name", "created_at"} for item in page["items"])
    page = proxy.admin("keys?limit=2&cursor=b")
    assert ([item["name"] for item in page["items"]], page["cursor"]) == (["c.1-x_Y"], None)
    again = proxy.answer("keys", "POST", json={"name": "a"})
    assert "there is a key named a already" in again.json()["detail"]
    assert again.status_code == 409
    for wrong in ("", "a b", "-a", "a/b", "ü", "a" * 65, "a\n"):
        assert proxy.answer("keys", "POST", json={"name": wrong}).status_code == 422
    assert proxy.answer("keys/nobody", "DELETE").status_code == 404
    assert proxy.admin("keys/a", "DELETE") == {"removed": "a"}
    assert proxy.chat(headers=bearer(made["a"])).status_code == 401
    assert proxy.chat(headers=bearer(made["b"])).status_code == 200
    for name in ("b", "c.1-x_Y"):
        proxy.admin(f"keys/{name}", "DELETE")
    assert proxy.chat().status_code == 200, "without keys everyone is served again"


def test_keys_outlive_a_restart_as_hashes(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    key = make(proxy, "ann")
    proxy = start_proxy()
    assert proxy.chat().status_code == 401
    assert proxy.chat(headers=bearer(key)).status_code == 200
    with contextlib.closing(Database(proxy.data)) as db:
        (row,) = db.all("SELECT * FROM keys")
        assert (row["name"], row["hash"]) == ("ann", keys.digest(key.encode()))
    held = b"".join(path.read_bytes() for path in proxy.data.rglob("*") if path.is_file())
    assert key.encode() not in held


def test_keys_made_at_once_all_work(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    made: dict[str, str] = {}
    threads = [threading.Thread(target=lambda n=n: made.__setitem__(n, make(proxy, n))) for n in map(str, range(12))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {proxy.chat(headers=bearer(key)).status_code for key in made.values()} == {200}


def test_where_the_keys_cannot_be_read_nobody_else_can_reach_the_proxy(tmp_path: Any) -> None:
    with contextlib.closing(Database(tmp_path)) as db:
        keys.make(db, "ann")
    damage(tmp_path / "slipstream.db", "keys")
    keys.check_bind(ProxySettings(data=tmp_path, host="127.0.0.1"))
    told = r"malformed\. Without it the client keys are not known, and 10\.0\.0\.1 can be reached"
    with pytest.raises(CannotServe, match=told):
        keys.check_bind(ProxySettings(data=tmp_path, host="10.0.0.1"))


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("127.0.0.1", False),
        ("127.3.2.1", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),  # noqa: S104 - a setting, which no test listens at
        ("::", True),
        ("", True),
        ("10.0.0.1", True),
        ("192.168.1.5", True),
        ("example.org", True),
        ("localhost.example.org", True),
        ("127.0.0.1.example.org", True),
    ],
)
def test_where_others_can_reach_the_proxy_keys_are_needed(
    start_proxy: StartProxy, tmp_path: Any, host: str, public: bool
) -> None:
    settings = ProxySettings(data=tmp_path / "data", host=host)
    with pytest.raises(PublicWithoutKeys) if public else contextlib.nullcontext() as refused:
        keys.check_bind(settings)
    if refused is not None:
        assert f"{host} can be reached from other machines" in str(refused.value)
        assert "`.venv/bin/slipstream keys add NAME`" in str(refused.value)
        assert asyncio.run(_start(App(settings))) == [
            {"type": "lifespan.startup.failed", "message": str(refused.value)}
        ]
        with contextlib.closing(Database(tmp_path / "data")) as db:
            keys.make(db, "ann")
        keys.check_bind(settings)
        proxy = start_proxy(host=host)
        assert proxy.chat().status_code == 401
        last = proxy.answer("keys/ann", "DELETE")
        assert (last.status_code, "ann is the last key" in last.json()["detail"]) == (409, True)
        assert [item["name"] for item in proxy.admin("keys")["items"]] == ["ann"]
        make(proxy, "bob")
        assert proxy.answer("keys/ann", "DELETE").status_code == 200


def test_the_first_key_is_made_on_the_command_line(start_proxy: StartProxy, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_DATA", str(tmp_path / "data"))
    added = CliRunner().invoke(cli.app, ["keys", "add", "ann"])
    assert added.exit_code == 0, added.output
    twice = CliRunner().invoke(cli.app, ["keys", "add", "ann"])
    assert (twice.exit_code, "there is a key named ann already" in twice.stderr) == (1, True)
    bad = CliRunner().invoke(cli.app, ["keys", "add", "a b"])
    assert (bad.exit_code, "'a b' cannot name a key" in bad.stderr) == (1, True)
    proxy = start_proxy(host="0.0.0.0")  # noqa: S104 - the setting; the test's server listens on loopback
    assert proxy.chat(headers=bearer(added.stdout.strip())).status_code == 200
    running = CliRunner().invoke(cli.app, ["keys", "add", "bob"])
    assert (running.exit_code, "POST /admin/keys" in running.stderr) == (1, True)


async def _start(app: App) -> list[Any]:
    """What an app that is started says."""
    said: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        said.append(message)

    await app({"type": "lifespan"}, receive, send)
    return said


def _session(db: Database, owner: str, session_id: str) -> Session | None:
    return sessions.find(db, Identity(Owner(owner), session_id), None)


def _calls(db: Database, owner: str, session_id: str) -> int:
    found = _session(db, owner, session_id)
    return found.calls if found else 0


def _rewarded(proxy: RunningProxy, path: str) -> dict[str, Any] | None:
    shown: dict[str, Any] = proxy.admin(path)
    return shown if shown["rewards"] else None
