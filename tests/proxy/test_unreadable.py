"""A database that cannot be used at the start: agents are served, all are told, the journal keeps all (promise 3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.database import FILE, Database
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import ADMIN_KEY, CHAT, ProxyProcess, Recorded, assert_exact, request, tags

_ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}


def garbage(data: Path) -> Callable[[], None]:
    """Returns what mends it; so below."""
    return _replace(data, lambda path: path.write_bytes(b"no database at all " * 1000))


def folder(data: Path) -> Callable[[], None]:
    return _replace(data, Path.mkdir)


def newer(data: Path) -> Callable[[], None]:
    db = Database(data)
    db.insert("_sqlite_migrations", migration_set="slipstream", name="999_flying", applied_at="2030-01-01")
    db.close()

    def mend() -> None:
        import pysqlite3

        connection = pysqlite3.connect(str(data / FILE))
        connection.execute("DELETE FROM _sqlite_migrations WHERE name = '999_flying'")
        connection.commit()
        connection.close()

    return mend


def _replace(data: Path, spoil: Callable[[Path], object]) -> Callable[[], None]:
    path, kept = data / FILE, data / "kept"
    path.rename(kept)
    spoil(path)

    def mend() -> None:
        path.rename(data / "spoiled")
        kept.rename(path)

    return mend


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (garbage, "file is not a database"),
        (folder, "unable to open database file"),
        (newer, "was written by a newer Slipstream (it holds 999_flying)"),
    ],
)
def test_agents_are_served_and_the_journal_keeps_all(
    own_fake: FakeVllm, tmp_path: Path, spoil: Callable[[Path], Callable[[], None]], reason: str
) -> None:
    played("before", own_fake, tmp_path / "data")
    for taken_in in (tmp_path / "data" / "journal").glob("*.segment"):
        taken_in.unlink()  # so that only the database knows how far the journal was
    mend = spoil(tmp_path / "data")
    proxy = ProxyProcess(tmp_path / "data", own_fake.url, own_fake.secret or "")
    try:
        proxy.wait()
        for stream in (False, True):
            answer = raw.ask(proxy.url, CHAT, request("during", stream=stream), tags("during"))
            assert (answer.status, answer.whole, answer.all(b"x-slipstream-recorded")) == (200, True, [])
            assert answer.all(b"x-policy-version") == [b"policy@0"]
        assert proxy.client.post("/v1/sessions/during/reward", json={"value": 0.25}).status_code == 200
        ready = proxy.client.get("/ready")
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        told = [ready.json()["problems"], proxy.client.get("/admin/status", headers=_ADMIN).json()["degraded"]]
        for problems in told:
            assert any(reason in problem and "kept in the journal" in problem for problem in problems)
        for method, path in (
            ("GET", "sessions"),
            ("POST", "pause"),
            ("GET", "keys"),
            ("POST", "sessions/before/reward"),
        ):
            refused = proxy.client.request(method, f"/admin/{path}", headers=_ADMIN, json={"value": 1})
            assert (refused.status_code, reason in refused.json()["detail"]) == (503, True)
    finally:
        proxy.kill()
    mend()
    played("after", own_fake, tmp_path / "data")
    recorded = Recorded(tmp_path / "data")
    for name, number in (("before", 1), ("during", 2), ("after", 1)):
        for call in recorded.calls(name, number):
            text = f"base-model answers (0) “{name}” — déjà vu, 日本 😀"
            assert_exact(call, [{"role": "user", "content": name}], [text])
    assert [row["value"] for row in recorded.db.all("SELECT value FROM rewards")] == [0.25]
    recorded.db.close()


def played(name: str, fake: FakeVllm, data: Path) -> None:
    """A proxy that starts, records a call and ends in order."""
    proxy = ProxyProcess(data, fake.url, fake.secret or "")
    try:
        proxy.wait()
        assert raw.ask(proxy.url, CHAT, request(name), tags(name)).status == 200
        recorded = Recorded(data)
        recorded.calls(name)
        recorded.db.close()
        proxy.process.terminate()
        proxy.process.wait(60)
    finally:
        proxy.kill()


def test_without_its_keys_no_public_address_is_served(own_fake: FakeVllm, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / FILE).write_bytes(b"no database at all " * 1000)
    proxy = ProxyProcess(tmp_path / "data", own_fake.url, own_fake.secret or "", SLIPSTREAM_HOST="0.0.0.0")  # noqa: S104
    try:
        assert proxy.process.wait(120) == 3
    finally:
        proxy.kill()
    assert (
        "Without it the client keys are not known, and 0.0.0.0 can be reached from other machines"
        in proxy.log.read_text()
    )
