import threading
from pathlib import Path

import pytest

from storage import groups, rewards, sessions
from storage.database import Database
from storage.errors import IllegalMove, NotFound
from storage.states import ClosedBy, GroupState, Outcome, SessionState
from storage.types import GroupId, Member, RunId, Session
from tests.storage.recorded import Recorded, a_reward, call_start, identity


def closed(recorded: Recorded, *names: str, by: ClosedBy = ClosedBy.IDLE) -> list[Session]:
    for name in names:
        recorded.call(call_start(name), "hello")
        recorded.close(name, by)
    recorded.take_in()
    return [recorded.session(name) for name in names]


def test_a_group_holds_its_members_and_nobody_else_can(recorded: Recorded) -> None:
    a, b, c = closed(recorded, "a", "b", "c")
    assert groups.claim(recorded.db, GroupId("g"), [a, b], 5.0)
    group = groups.get(recorded.db, GroupId("g"))
    assert (group.owner, group.scenario, group.split, group.state) == ("default", "task", "train", GroupState.READY)
    assert group.members == (Member(a.key), Member(b.key))
    assert not groups.claim(recorded.db, GroupId("h"), [b, c], 6.0)
    with pytest.raises(NotFound):
        groups.get(recorded.db, GroupId("h"))
    assert [session.session_id for session in sessions.waiting(recorded.db)] == ["c"]


def test_of_two_claims_at_once_one_wins(recorded: Recorded) -> None:
    members = closed(recorded, "a", "b")
    gate = threading.Barrier(2)
    won: list[str] = []

    def claim(name: str) -> None:
        db = Database(recorded.folder)
        for _ in range(20):
            gate.wait()
            if groups.claim(db, GroupId(name), members, 1.0):
                won.append(name)
        db.close()

    threads = [threading.Thread(target=claim, args=(name,)) for name in ("g", "h")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert [group.id for group in groups.in_state(recorded.db, GroupState.READY)] == won


def test_a_session_that_opened_again_is_not_claimed(recorded: Recorded) -> None:
    members = closed(recorded, "a", "b")
    recorded.call(call_start("a"), "late")
    recorded.take_in()
    assert recorded.session("a").state is SessionState.OPEN
    assert not groups.claim(recorded.db, GroupId("g"), members, 1.0)
    recorded.close("a")
    recorded.take_in()
    assert groups.claim(recorded.db, GroupId("g"), members, 1.0)


def test_a_session_with_an_outcome_is_not_claimed_and_opens_no_more(recorded: Recorded) -> None:
    a, b = closed(recorded, "a", "b")
    sessions.set_outcome(recorded.db, a.key, Outcome.SKIPPED, "nothing to train on", None, 1.0)
    assert not groups.claim(recorded.db, GroupId("g"), [a, b], 1.0)
    assert not sessions.takes_calls(recorded.db, a)
    assert sessions.takes_calls(recorded.db, b)


def test_scores_and_moves(recorded: Recorded) -> None:
    a, b = closed(recorded, "a", "b")
    db = recorded.db
    groups.claim(db, GroupId("g"), [a, b], 1.0)
    group = groups.get(db, GroupId("g"))
    with pytest.raises(IllegalMove, match="group g cannot go from ready to trained"):
        groups.move(db, group, GroupState.TRAINED)
    scored = [Member(a.key, 0.25, "poor"), Member(b.key, 1.0, None)]
    groups.set_scores(db, group, scored, groups.Verdict("judge-1", 120, 9), 2.0)
    group = groups.get(db, GroupId("g"))
    assert (group.state, group.judge, group.judge_tokens, group.judge_seed) == (GroupState.SCORED, "judge-1", 120, 9)
    assert group.members == tuple(scored)
    groups.move(db, group, GroupState.TRAINED, run=RunId("r"))
    assert groups.get(db, GroupId("g")).run == "r"
    assert groups.states(db) == {"trained": 1}
    (row,) = groups.rows(db, {"scenario": "task"}, 10, None)
    assert row["members"] == 2
    assert "mean_reward" not in row, "a RULER score is compared only inside its group"
    assert groups.rows(db, {}, 10, "g") == []
    assert [member["session_id"] for member in groups.member_rows(db, GroupId("g"))] == ["a", "b"]


def test_groups_of_a_scenario(recorded: Recorded) -> None:
    for scenario in ("one", "two"):
        for number in range(2):
            recorded.call(call_start(f"{scenario}{number}", scenario=scenario), "hello")
            recorded.close(f"{scenario}{number}")
    recorded.take_in()
    for scenario in ("one", "two"):
        members = [session for session in sessions.waiting(recorded.db) if session.scenario == scenario]
        groups.claim(recorded.db, GroupId(scenario), members, 1.0)
    assert [group.id for group in groups.in_state(recorded.db, GroupState.READY)] == ["one", "two"]
    assert [group.id for group in groups.in_state(recorded.db, GroupState.READY, "two")] == ["two"]


def test_a_reward_waits_for_its_session(recorded: Recorded) -> None:
    recorded.reward(a_reward("s", 0.5))
    recorded.reward(a_reward("other", 0.1))
    recorded.call(call_start("s"), "hello")
    recorded.reward(a_reward("s", 0.75, name="second"))
    recorded.take_in()
    key = recorded.session("s").key
    assert [(r.value, r.name) for r in rewards.of_session(recorded.db, key)] == [(0.5, "reward"), (0.75, "second")]
    assert recorded.db.number("SELECT count(*) FROM rewards WHERE session IS NULL") == 1


def test_a_reward_waits_a_day_and_no_longer(recorded: Recorded) -> None:
    start = call_start("s")
    day = 24 * 3600
    recorded.reward(a_reward("s", 0.1, created_at=start.started_at - day - 1))
    recorded.reward(a_reward("s", 0.2, created_at=start.started_at - day + 1))
    recorded.call(start, "hello")
    recorded.take_in()
    assert [r.value for r in rewards.of_session(recorded.db, recorded.session("s").key)] == [0.2]


def test_a_reward_for_an_episode_goes_to_that_episode(recorded: Recorded) -> None:
    recorded.reward(a_reward("s", 0.2, episode=2))
    recorded.call(call_start("s"), "first")
    recorded.close("s")
    recorded.call(call_start("s"), "second")
    recorded.reward(a_reward("s", 0.1, episode=1))
    recorded.reward(a_reward("s", 0.3))
    recorded.take_in()
    first, second = recorded.session("s", 1), recorded.session("s", 2)
    assert [r.value for r in rewards.of_session(recorded.db, first.key)] == [0.1]
    assert [r.value for r in rewards.of_session(recorded.db, second.key)] == [0.2, 0.3]


def test_a_reward_that_is_sent_twice_counts_once_and_belongs_to_its_owner(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "hello")
    reward = a_reward("s", 0.5)
    recorded.reward(reward)
    recorded.reward(reward)
    recorded.reward(a_reward("s", 0.9, identity=identity("s", "somebody else")))
    recorded.take_in()
    assert [r.value for r in rewards.of_session(recorded.db, recorded.session("s").key)] == [0.5]


def test_rewards_are_superseded_never_overwritten(recorded: Recorded) -> None:
    recorded.call(call_start("s"), "hello")
    for value in (0.1, 0.9):
        recorded.reward(a_reward("s", value))
    recorded.take_in()
    assert [r.value for r in rewards.of_session(recorded.db, recorded.session("s").key)] == [0.1, 0.9]


def test_an_outcome_is_said_once(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    (session,) = closed(recorded, "s")
    sessions.set_outcome(recorded.db, session.key, Outcome.SKIPPED, "why", None, 1.0)
    with pytest.raises(Exception, match="UNIQUE"):
        sessions.set_outcome(recorded.db, session.key, Outcome.TRAINED, None, RunId("r"), 2.0)
    assert sessions.states(recorded.db) == {"skipped": 1}
    (row,) = sessions.rows(recorded.db, {"state": "closed"}, 10, None)
    assert (row["outcome"], row["outcome_reason"]) == ("skipped", "why")
    recorded.abandon()
