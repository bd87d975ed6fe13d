"""The admin API: who may use it, and that it shows what is."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy import secrets
from proxy.admin.context import Context
from proxy.settings import ProxySettings
from storage import coordination, drifts, groups, judging, runs, sessions
from storage.database import Database
from storage.drifts import Drift, Kind
from storage.states import Outcome, RunState
from storage.types import BASE, DEFAULT_OWNER, GroupId, Identity, Member, RunId
from tests.proxy import raw
from tests.proxy.adapters import Trainer
from tests.proxy.conftest import StartProxy
from tests.proxy.running import ADMIN_KEY, Recorded, RunningProxy, tags, until

READS = ["status", "sessions", "sessions/x", "scenarios", "groups", "groups/x", "runs", "runs/x", "versions"]
WRITES = ["train", "pause", "resume", "sessions/x/reward"]


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", f"Basic {ADMIN_KEY}", "Bearer größe"])
def test_nothing_is_told_without_the_key(proxy: RunningProxy, given: str | None) -> None:
    headers: dict[str, Any] = {} if given is None else {"authorization": given.encode()}
    asked = [("GET", path) for path in READS] + [("POST", path) for path in WRITES]
    for method, path in asked:
        answer = proxy.client.request(method, f"/admin/{path}", headers=headers, json={"value": 1})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer <key>" in answer.json()["detail"]


def test_the_open_paths_need_no_key(proxy: RunningProxy) -> None:
    assert proxy.client.get("/health").json() == {"status": "ok"}
    assert proxy.client.get("/ready").json() == {"ready": True, "serves": True, "records": True, "reachable": True}
    assert proxy.client.get("/admin/docs").status_code == 200


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/v1", "/v1/load_lora_adapter", "/pause", "/v1/sessions"])
def test_other_paths_do_not_reach_vllm(proxy: RunningProxy, path: str) -> None:
    assert proxy.client.post(path, json={}).status_code == 404


def test_secrets_are_made_once_and_kept_from_others(tmp_path: Path) -> None:
    said: list[str] = []
    settings = ProxySettings(data=tmp_path / "data", admin_key=None)
    key = secrets.admin_key(settings, said.append, shown=True)
    assert key.startswith("slip-")
    assert len(said) == 1
    assert key in said[0]
    assert secrets.admin_key(settings, said.append, shown=True) == key
    assert len(said) == 1
    other = ProxySettings(data=tmp_path / "other", admin_key=None)
    hidden = secrets.admin_key(other, said.append, shown=False)
    assert said[1:] == [f"The admin key lies in {tmp_path / 'other' / 'admin.key'}"], "a log is told no key"
    assert hidden == (tmp_path / "other" / "admin.key").read_text().strip()
    plugin = secrets.plugin_secret(tmp_path / "data")
    assert plugin != key
    for name in (secrets.ADMIN_KEY, secrets.PLUGIN_SECRET):
        assert stat.S_IMODE((tmp_path / "data" / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("key", [None, ""], ids=["not set", "empty"])
def test_without_a_key_in_the_settings_one_is_made(start_proxy: StartProxy, key: str | None) -> None:
    proxy = start_proxy(admin_key=key)
    made = (proxy.data / "admin.key").read_text().strip()
    assert proxy.client.get("/admin/status", headers={"authorization": "Bearer"}).status_code == 401
    assert proxy.client.get("/admin/status", headers={"authorization": f"Bearer {made}"}).status_code == 200


def test_an_emptied_key_lets_nobody_in_and_is_made_again(start_proxy: StartProxy, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "admin.key").write_text("")
    proxy = start_proxy(admin_key=None)
    for headers in ({}, {"authorization": "Bearer"}):
        assert proxy.client.get("/admin/status", headers=headers).status_code == 401
    made = (proxy.data / "admin.key").read_text().strip()
    assert proxy.client.get("/admin/status", headers={"authorization": f"Bearer {made}"}).status_code == 200


def test_a_secret_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            secrets.keep(tmp_path, "a.secret")
    assert list(tmp_path.iterdir()) == []
    made, new = secrets.keep(tmp_path, "a.secret")
    assert (secrets.keep(tmp_path, "a.secret"), new) == ((made, False), True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.secret"]


def test_of_two_that_make_a_secret_one_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_first(_: int) -> None:
        (tmp_path / "a.secret").write_text("the other's\n")

    monkeypatch.setattr(os, "fsync", other_first)
    assert secrets.keep(tmp_path, "a.secret") == ("the other's", False)


def test_the_database_and_its_folder_hold_no_key(proxy: RunningProxy, recorded: Recorded, sid: str) -> None:
    headers = {**tags(sid), "authorization": "Bearer sk-client-secret", "cookie": "id=client-cookie"}
    proxy.chat(headers=headers)
    recorded.calls(sid)
    for path in proxy.data.rglob("*"):
        if path.is_file() and path.suffix not in (".key", ".secret"):
            held = path.read_bytes()
            assert b"sk-client-secret" not in held
            assert b"client-cookie" not in held


def test_a_session_is_shown_with_its_calls_and_rewards(proxy: RunningProxy, recorded: Recorded) -> None:
    name = "odd/name ü?#%2F"
    quoted = "odd%2Fname%20%C3%BC%3F%23%252F"
    proxy.chat("hello", headers={**tags(name.encode()), "x-agent": "planner", "x-session-end": "true"})
    until(lambda: recorded.closed(name))
    recorded.calls(name)
    answer = proxy.answer(f"sessions/{quoted}/reward", "POST", json={"value": 0.5, "reason": "fine"})
    assert answer.status_code == 200
    shown = until(lambda: _with_reward(proxy.answer(f"sessions/{quoted}")))
    assert (shown["session_id"], shown["scenario"], shown["state"]) == (name, "c", "closed")
    (call,) = shown["calls"]
    assert (call["agent"], call["model"], call["outcome"], call["status"]) == ("planner", "agent", "complete", 200)
    assert call["input"] == [{"role": "user", "content": "hello"}]
    assert call["output"][0]["content"].startswith("base-model answers")
    assert call["sampled_tokens"] == len("base-model answers (0) “hello” — déjà vu, 日本 😀".encode()) + 1
    (reward,) = shown["rewards"]
    assert (reward["value"], reward["source"], reward["reason"], reward["late"]) == (0.5, "admin", "fine", False)
    assert proxy.answer("sessions/nobody").status_code == 404
    assert proxy.answer(f"sessions/{quoted}?episode=2").status_code == 404
    assert proxy.answer("sessions/nobody/reward", "POST", json={"value": 1}).status_code == 404


def test_lists_are_paged_and_filtered(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    recorded = Recorded(proxy.data)
    for number in range(5):
        proxy.chat(headers=tags(f"s{number}", scenario=f"c{number % 2}", x_session_end="true"))
    for number in range(5):
        until(lambda name=f"s{number}": recorded.closed(name))  # type: ignore[misc]
    seen: list[str] = []
    cursor = ""
    while True:
        page = proxy.admin(f"sessions?limit=2{cursor}")
        seen += [item["session_id"] for item in page["items"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert seen == ["s4", "s3", "s2", "s1", "s0"]
    assert [s["session_id"] for s in proxy.admin("sessions?scenario=c1")["items"]] == ["s3", "s1"]
    assert proxy.admin("sessions?state=open")["items"] == []
    assert len(proxy.admin("sessions?state=closed&version=0")["items"]) == 5
    for wrong in ("sessions?state=asleep", "sessions?limit=0", "sessions?limit=1001", "sessions?version=x"):
        assert proxy.answer(wrong).status_code == 422
    assert proxy.status()["sessions"] == {"closed": 5}
    recorded.db.close()


def test_groups_and_runs_are_shown(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    recorded = Recorded(proxy.data)
    for name in ("a", "b"):
        proxy.chat(headers=tags(name, x_session_end="true"))
    members = [until(lambda name=name: recorded.closed(name)) for name in ("a", "b")]  # type: ignore[misc]
    db = recorded.db
    assert groups.claim(db, GroupId("g"), members, 1.0)
    run = Trainer(proxy.data).announce(1)
    with db.transaction():
        scored = [Member(member.key, float(i), f"reason {i}") for i, member in enumerate(members)]
        groups.set_scores(db, groups.get(db, GroupId("g")), scored, groups.Verdict("judge-model", 123, 2**53 - 1), 2.0)
        groups.set_consumed(db, run, [GroupId("g")])
        sessions.set_outcome(db, members[0].key, Outcome.SKIPPED, "no token had an effect", run, 3.0)
    (scenario,) = proxy.admin("scenarios")["items"]
    alone = {"version": 0, "sessions": 2, "mean": None, "reference": 0, "effect": None, "standard_error": None}
    assert scenario["progress"] == {"ruler": [alone | {"reason": None}]}
    (listed,) = proxy.admin("groups?state=scored")["items"]
    # A judge's scores compare within a group, and say nothing in absolute terms.
    assert "mean_reward" not in listed
    assert proxy.admin("groups?state=ready")["items"] == []
    assert proxy.answer("groups?state=score").status_code == 422
    shown = proxy.admin("groups/g")
    assert (shown["judge"], shown["judge_tokens"], shown["state"]) == ("judge-model", 123, "scored")
    assert shown["judge_seed"] == 2**53 - 1
    assert [(m["session_id"], m["reward"], m["explanation"]) for m in shown["members"]] == [
        ("a", 0.0, "reason 0"),
        ("b", 1.0, "reason 1"),
    ]
    shown = proxy.admin(f"runs/{run}")
    assert (shown["state"], shown["version"]) == ("succeeded", 1)
    assert shown["groups"] == [
        {"id": "g", "scenario": "c", "state": "scored", "reason": None, "replayed": False, "spread": 1.0}
    ]
    assert shown["skipped_sessions"] == [{"session_id": "a", "episode": 1, "reason": "no token had an effect"}]
    assert [item["id"] for item in proxy.admin("runs")["items"]] == [run]
    assert proxy.answer("runs/nothing").status_code == proxy.answer("groups/nothing").status_code == 404
    db.close()


def test_training_without_a_trainer_is_503(proxy: RunningProxy) -> None:
    answer = proxy.answer("train", "POST", json={})
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("the trainer does not run: start it with ")
    assert proxy.answer("train", "POST").status_code == 503, "a body is not needed"
    assert proxy.answer("train", "POST", json={"colour": 1}).status_code == 422
    assert any(problem.startswith("the trainer does not run") for problem in proxy.status()["degraded"])


def test_versions_are_paged_newest_first(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    trainer = Trainer(proxy.data)
    for number in (1, 2):
        trainer.train(number, parent=number - 1)
    until(lambda: proxy.status()["live"] == "policy@2")
    page = proxy.admin("versions?limit=2")
    assert ([item["number"] for item in page["items"]], page["cursor"]) == ([2, 1], 1)
    assert {row["version"] for row in page["loadings"]} == {1, 2}
    page = proxy.admin("versions?limit=2&cursor=1")
    assert ([item["number"] for item in page["items"]], page["cursor"], page["loadings"]) == ([0], None, [])
    assert proxy.answer("versions?limit=0").status_code == 422


def test_settings_that_no_run_could_use_are_refused_at_the_request(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    with contextlib.closing(Database(proxy.data)) as db:
        coordination.beat(db, time.time())
        for settings, name, text in (
            ('{"steps": 18446744073709551616}', "steps", "Input should be less than or equal to 1000"),
            ('{"learning_rat": 1}', "learning_rat", "Extra inputs are not permitted"),
            ('{"learning_rate": 1e999}', "learning_rate", "Input should be a finite number"),
            ('{"loss": "ppo"}', "loss", "Input should be 'grpo' or 'cispo'"),
        ):
            answer = proxy.answer("train", "POST", content=f'{{"settings": {settings}}}')
            (problem,) = answer.json()["detail"]
            assert (answer.status_code, problem["loc"], problem["msg"]) == (422, ["body", "settings", name], text)
        assert runs.requests(db) == []


def test_pause_and_resume_concern_the_scheduler(proxy: RunningProxy) -> None:
    assert proxy.admin("pause", "POST") == {"paused": True}
    assert proxy.status()["paused"] is True
    assert proxy.chat().status_code == 200
    assert proxy.admin("resume", "POST") == {"paused": False}
    assert proxy.status()["paused"] is False


def test_a_run_that_is_asked_for(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    db = Database(proxy.data)
    coordination.beat(db, time.time())
    asked = proxy.answer("train", "POST", json={"scenario": "c", "settings": {"steps": 3}})
    assert (asked.status_code, asked.json()["state"]) == (202, "requested")
    shown = proxy.admin(f"runs/{asked.json()['id']}")
    assert (shown["scenario"], shown["settings"], shown["state"]) == ("c", {"steps": 3}, "requested")
    (request,) = runs.requests(db)
    runs.create(db, request)
    runs.end(db, request.id, RunState.SKIPPED, "no group is complete", {}, time.time())
    assert proxy.admin(f"runs/{request.id}")["reason"] == "no group is complete"
    coordination.beat(db, time.time() - 11)
    assert proxy.answer("train", "POST", json={}).status_code == 503
    db.close()


def test_train_with_wait_answers_when_the_version_does(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    db = Database(proxy.data)
    coordination.beat(db, time.time())
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(proxy.answer("train", "POST", json={"wait": True})))
    waiting.start()
    (request,) = until(lambda: runs.requests(db))
    Trainer(proxy.data).publish(1)
    with db.transaction():
        runs.create(db, request)
        runs.reserve_version(db, RunId(request.id), BASE, {}, time.time())
        runs.end(db, request.id, RunState.SUCCEEDED, None, {"loss": 0.5}, time.time())
    waiting.join(60)
    (answer,) = answers
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["version"], answer.json()["metrics"]) == (
        "succeeded",
        1,
        {"loss": 0.5},
    )
    assert proxy.chat().headers["x-policy-version"] == "policy@1"
    db.close()


def test_a_client_that_waits_for_a_run_and_leaves_is_not_waited_for(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    with contextlib.closing(Database(proxy.data)) as db:
        coordination.beat(db, time.time() + 1e6)  # a trainer that is never late
        with raw.connect(proxy.url) as client:
            body = b'{"wait": true}'
            client.sendall(raw.head("/admin/train", len(body), {"authorization": f"Bearer {ADMIN_KEY}"}) + body)
            until(lambda: runs.requests(db))
            assert proxy.serving.under_way == 1
        until(lambda: proxy.serving.under_way == 0)
        assert len(runs.requests(db)) == 1, "the run goes on"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "application/json", None])
def test_a_body_is_json_whatever_it_is_called(start_proxy: StartProxy, kind: str | None) -> None:
    proxy = start_proxy()
    fields = {"authorization": f"Bearer {ADMIN_KEY}"} | ({} if kind is None else {"content-type": kind})
    made = httpx.post(f"{proxy.url}/admin/keys", content=b'{"name": "ann"}', headers=fields, timeout=60)
    assert (made.status_code, made.json()["name"]) == (201, "ann")
    refused = httpx.post(f"{proxy.url}/admin/keys", content=b"name=bob", headers=fields, timeout=60)
    assert (refused.status_code, refused.json()["detail"][0]["msg"]) == (422, "JSON decode error")


def test_status_is_one_page_of_truth(start_proxy: StartProxy, own_fake: Any) -> None:
    proxy = start_proxy()
    status = proxy.status()
    assert (status["policy"], status["aliases"], status["live"]) == ("policy", ["agent"], "policy@0")
    assert status["upstreams"] == [
        {
            "url": own_fake.url,
            "problem": None,
            "plugin": True,
            "base_model": "base-model",
            "root": "/models/base",
            "serves": ["policy@0"],
        }
    ]
    assert (status["versions"], status["sessions"], status["groups"]) == ({"live": ["policy@0"]}, {}, {})
    assert (status["last_run"], status["paused"], status["trainer"]) == (None, False, None)
    assert status["warnings"] == ["no version has been trained yet: agents get the base model"]
    context: Context = proxy.app.fastapi.state.context
    assert context.table.pinned() == set()


def _with_reward(answer: httpx.Response) -> dict[str, Any] | None:
    shown: dict[str, Any] = answer.json()
    return shown if answer.is_success and shown["rewards"] else None


def test_drift_is_shown_with_the_session_and_warned_of(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    db = Database(proxy.data)
    for number in range(4):
        assert not [warning for warning in proxy.status()["warnings"] if warning.startswith("drift")]
        proxy.chat(headers=tags(f"s{number}", scenario="a game", x_session_end="true"))
        found = until(lambda: sessions.find(db, Identity(DEFAULT_OWNER, f"s{number}"), None))  # noqa: B023
        drifts.keep(db, found.key, Drift(3, 3, kind=Kind.REASONING, sampled="<think>", prompted="yes"))
    db.close()
    drift = proxy.admin("sessions/s0")["drift"]
    assert (drift["continued"], drift["drifted"], drift["kind"]) == (3, 3, "reasoning stripped")
    assert (drift["sampled"], drift["prompted"]) == ("<think>", "yes")
    (warning,) = [warning for warning in proxy.status()["warnings"] if warning.startswith("drift")]
    assert "4 of the last 4 sessions of scenario 'a game' fall apart" in warning
    assert "(reasoning stripped)" in warning
    (scenario,) = proxy.admin("scenarios")["items"]
    assert (scenario["scenario"], scenario["sessions"]) == ("a game", {"closed": 4})
    assert scenario["drift"]["kinds"] == {"reasoning stripped": 4}


def test_the_judge_and_what_it_cost_are_shown(proxy: RunningProxy) -> None:
    assert proxy.status()["judge"] is None, "no trainer has run yet"
    db = Database(proxy.data)
    judging.describe(db, None, None)
    assert any(warning.startswith("no judge is configured") for warning in proxy.status()["warnings"])
    judging.describe(db, "judge-1", 100)
    assert not any("judge" in warning for warning in proxy.status()["warnings"])
    with db.transaction():
        judging.spend(db, GroupId("g"), 60, 5.0)
        judging.spend(db, GroupId("g"), 99, time.time())
    shown = {"model": "judge-1", "tokens_today": 99, "tokens_total": 159, "tokens_per_day": 100, "stopped": False}
    assert proxy.status()["judge"] == shown
    judging.spend(db, GroupId("g"), 1, time.time())
    assert proxy.status()["judge"] == shown | {"tokens_today": 100, "tokens_total": 160, "stopped": True}
    db.close()
