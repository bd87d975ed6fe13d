"""The whole loop through the wire: agents, proxy, judge, trainer, hot load; and what the database tells of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from storage import calls
from storage.database import Database
from storage.types import SessionKey
from tests.e2e.conftest import Report
from tests.e2e.judge import REWARDED, prompt
from tests.e2e.service import Service
from tests.e2e.training import ROUNDS, play_round

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

Runs = list[dict[str, Any]]


def probability(service: Service, choice: str, model: str) -> float:
    """Of the rewarded word as the first token, in lower and upper case, as vLLM reports it through the proxy."""
    word = REWARDED[choice]
    with service.agent() as client:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt(choice)}],
            max_tokens=1,
            temperature=1,
            logprobs=True,
            top_logprobs=20,
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    first = logprobs.content[0].top_logprobs
    return sum(math.exp(token.logprob) for token in first if token.token in (word, word.capitalize()))


def test_the_rewarded_answer_becomes_at_least_three_times_as_probable(
    service: Service, trained: Runs, report: Report
) -> None:
    before = {choice: probability(service, choice, "policy@0") for choice in REWARDED}
    after = {choice: probability(service, choice, "agent") for choice in REWARDED}
    for choice in REWARDED:
        report(f"{choice} {REWARDED[choice]}: probability {before[choice]:.3f} -> {after[choice]:.3f}")
    assert all(0.02 <= p <= 0.25 for p in before.values())
    risen = [choice for choice in REWARDED if after[choice] >= 3 * before[choice]]
    assert len(risen) >= 5


def test_a_killed_worker_fails_one_run_and_the_next_trains_its_groups_once(service: Service, trained: Runs) -> None:
    failed = [run for run in trained if run["state"] == "failed"]
    assert len(failed) == 1
    assert "SIGKILL" in failed[0]["reason"]
    groups = {row["group"] for row in service.rows('SELECT "group" FROM run_groups WHERE run = ?', failed[0]["id"])}
    assert groups
    for group in groups:
        taken = service.rows(
            'SELECT runs.state FROM run_groups JOIN runs ON runs.id = run WHERE "group" = ? ORDER BY requested_at',
            group,
        )
        assert [row["state"] for row in taken] == ["failed", "succeeded"]


def test_the_database_tells_the_whole_story(service: Service, trained: Runs) -> None:
    succeeded = [run for run in trained if run["state"] == "succeeded"]
    # Towards the end all attempts may be equally good: then a run says that nothing waits to be trained.
    assert len(succeeded) >= ROUNDS - 3
    assert all(run["reason"] for run in trained if run["state"] != "succeeded")
    for run in succeeded:
        told = service.admin("GET", f"/runs/{run['id']}")
        assert told["groups"]
        version = service.rows("SELECT * FROM versions WHERE run = ?", run["id"])[0]
        assert version["number"] == run["version"]
        assert version["verified_at"] <= version["live_at"]
    # Every session of the training ended somewhere, with its scores and the judge's reasons.
    lost = service.rows(
        "SELECT session_id FROM sessions LEFT JOIN outcomes ON session = key"
        " WHERE split = 'train' AND scenario LIKE '% 1' AND state = 'closed' AND outcome IS NULL"
        " AND key NOT IN (SELECT session FROM group_members JOIN groups ON id = \"group\" WHERE groups.state = 'ready')"
    )
    few = [row["session_id"] for row in lost if not row["session_id"].startswith("up or down?")]
    assert few == []
    unscored = service.rows(
        'SELECT session FROM group_members JOIN groups ON id = "group"'
        " WHERE groups.state IN ('scored', 'trained') AND (reward IS NULL OR explanation IS NULL)"
    )
    assert unscored == []
    assert service.rows("SELECT id FROM groups WHERE state = 'skipped' AND reason IS NULL") == []
    twice = service.rows("SELECT session FROM outcomes WHERE outcome = 'trained' GROUP BY session HAVING count(*) > 1")
    assert twice == []


def test_each_version_was_proven_before_it_answered(service: Service, trained: Runs) -> None:
    verdicts = [row["verdict"] for row in service.rows("SELECT verdict FROM loadings WHERE verdict IS NOT NULL")]
    assert len(verdicts) == len([run for run in trained if run["state"] == "succeeded"])
    assert set(verdicts) <= {"moved as trained", "identity only"}
    assert "moved as trained" in verdicts


def test_sessions_of_two_turns_are_trained_as_one_sequence(service: Service, trained: Runs) -> None:
    sessions = play_round(service, turns=2)
    run = service.train()
    assert run["state"] == "succeeded", run
    outcomes = service.rows(
        f"SELECT session, outcome FROM outcomes JOIN sessions ON key = session"
        f" WHERE session_id IN ({','.join('?' * len(sessions))}) AND run = ?",
        *sessions,
        run["id"],
    )
    assert outcomes
    assert {row["outcome"] for row in outcomes} == {"trained"}
    # One sequence each, unless vLLM itself was given other tokens in the second turn than it sampled in the first: the
    # tokenizer does not make every sampled answer again from its text, and then the second turn is a branch.
    whole = [is_continued(service, SessionKey(row["session"])) for row in outcomes]
    assert run["metrics"]["sequences"] == sum(1 if continued else 2 for continued in whole)
    assert sum(whole) > 0.8 * len(whole)


def is_continued(service: Service, session: SessionKey) -> bool:
    """Whether the second call's prompt begins with the first one's prompt and its sampled answer."""
    db = Database(service.data)
    first, second = calls.of_session(db, session)
    db.close()
    seen = first.prompt_ids + first.choices[0].ids
    return second.prompt_ids[: len(seen)] == seen
