"""Replay: which groups are trained again, what of them, and what a run does about it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from storage import groups, replays, sessions
from storage.groups import CLIENTS, WEIGHTED
from storage.replays import Past
from storage.states import GroupState, RunState
from storage.types import DEFAULT_OWNER, Group, GroupId, VersionNumber
from tests.storage.recorded import capture
from tests.trainer.workshop import Workshop, score
from trainer.replay import ENOUGH, KEPT, PER_REPLAYED, choose

SPREAD = 0.05
Members = Sequence[tuple[int, float]]


def past(name: str, members: Members, judge: str = CLIENTS, *, trained: bool = True, times: int = 0) -> Past:
    return Past(GroupId(name), judge, trained, times, tuple((VersionNumber(v), reward) for v, reward in members))


def chosen(found: Sequence[Past], new: set[str], newest: int = 0, max_staleness: int = 4) -> Sequence[str]:
    return choose(found, {GroupId(one) for one in new}, lambda version: newest - version, max_staleness)


def rewards(*values: float) -> list[tuple[int, float]]:
    return [(0, value) for value in values]


# --- Which ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reaching", "expected"), [(0, ["good"]), (1, ["good"]), (2, []), (8, [])])
def test_groups_with_the_best_reward_are_chosen_while_under_a_quarter_of_new_sessions_reach_it(
    reaching: int, expected: list[str]
) -> None:
    assert ENOUGH == 0.25
    new = past("new", rewards(*[1.0] * reaching, *[0.75] * (8 - reaching)), trained=False)
    assert chosen([new, past("good", rewards(1.0, 0.5)), past("poor", rewards(0.75, 0.5))], {"new"}) == expected


def test_a_new_best_leaves_nothing_that_is_worth_it() -> None:
    new = past("new", rewards(1.5, *[0.0] * 7), trained=False)
    assert chosen([new, past("good", rewards(1.0, 0.5))], {"new"}) == []


def test_without_new_groups_nothing_is_chosen() -> None:
    assert chosen([past("good", rewards(1.0, 0.5))], set()) == []


def test_one_for_three_new_groups_and_those_first_that_were_trained_again_least_often() -> None:
    assert PER_REPLAYED == 3
    new = [past(f"new {number}", rewards(0.0, 0.1), trained=False) for number in range(4)]
    good = [past(f"good {number}", rewards(1.0, 0.5), times=times) for number, times in enumerate((2, 1, 1, 0))]
    assert chosen([*new, *good], {one.id for one in new}) == ["good 3", "good 1"]
    assert chosen([*new, *good], {"new 0"}) == ["good 3"]


def test_only_the_newest_that_hold_the_best_are_kept_and_only_what_was_trained() -> None:
    assert KEPT == 16
    new = [past(f"new {number}", rewards(0.0, 0.1), trained=False) for number in range(3 * KEPT + 9)]
    good = [past(f"good {number}", rewards(1.0, 0.5)) for number in range(KEPT + 2)]
    lost = past("lost", rewards(1.0, 0.5), trained=False)
    found = chosen([*new, lost, *good], {one.id for one in new})
    assert found == [one.id for one in good[:KEPT]]


@pytest.mark.parametrize("judge", ["a judge", WEIGHTED])
def test_what_means_nothing_outside_its_group_is_the_best_where_it_won_against_the_oldest_version(judge: str) -> None:
    losing = past("new", [(3, 0.9), (3, 0.8), (4, 0.1), (4, 0.2)], judge, trained=False)
    winning = past("winner", [(2, 0.1), (2, 0.3), (3, 0.5)], judge)
    # A high score is worth nothing by itself, nor where the oldest version has it, nor where nobody is older.
    others = [past("loser", [(2, 1.0), (3, 0.9)], judge), past("alone", [(3, 1.0), (3, 0.0)], judge)]
    assert chosen([losing, *others, winning], {"new"}, newest=4) == ["winner"]
    better = past("new", [(3, 0.1), (4, 0.9)], judge, trained=False)
    assert chosen([better, winning], {"new"}, newest=4) == []
    # Nothing is known of versions that were not compared.
    assert chosen([past("new", [(4, 0.9), (4, 0.1)], judge, trained=False), winning], {"new"}, newest=4) == []
    assert chosen([losing, winning], {"new"}, newest=7, max_staleness=4) == [], "what it won against lies too far back"


def test_rewards_of_clients_and_scores_of_a_judge_are_not_compared() -> None:
    new = past("new", rewards(0.5, 0.4), trained=False)
    judged = past("judged", [(0, 0.1), (1, 1.0)], "a judge")
    assert chosen([new, judged, past("good", rewards(0.9, 0.1))], {"new"}) == ["good"]


# --- A run ----------------------------------------------------------------------------------------------------


def trained(workshop: Workshop, given: Sequence[float], scenario: str = "task", answer: int = 3) -> Group:
    """A group that a run trained."""
    group = scored(workshop, given, scenario, answer)
    assert workshop.training().carry_out(workshop.ask()).state is RunState.SUCCEEDED
    return groups.get(workshop.db, group.id)


def scored(workshop: Workshop, given: Sequence[float], scenario: str = "task", answer: int = 3) -> Group:
    members = workshop.many([*given], scenario, tokens=capture([1, 2], [answer]))
    group = workshop.group(members)
    assert score(workshop.db, group, None, SPREAD)
    return groups.get(workshop.db, group.id)


def test_a_run_trains_again_what_is_best_beside_the_new_and_nobodys_end_changes(workshop: Workshop) -> None:
    good = trained(workshop, [1.0, 0.0, 0.5], answer=8)
    before = {member.session: workshop.outcome(member.session) for member in good.members}
    new = scored(workshop, [0.5, 0.0])
    run = workshop.training().carry_out(workshop.ask(replay=True))
    assert run.state is RunState.SUCCEEDED
    batch = workshop.worker.batches[-1]
    assert batch.advantages.tolist() == [0.25, -0.25, 0.5, -0.5, 0.0]
    assert batch.replayed.tolist() == [False, False, True, True, True]
    assert [int(one.ids[-1]) for one in batch.sequences] == [3, 3, 8, 8, 8]
    assert {member.session: workshop.outcome(member.session) for member in good.members} == before
    assert groups.get(workshop.db, good.id) == good
    assert [(row["id"], row["replayed"]) for row in groups.rows_of_run(workshop.db, run.id)] == [
        (good.id, True), (new.id, False),
    ]  # fmt: skip
    assert [group.id for group in groups.consumed_by(workshop.db, run.id)] == [new.id]
    (first, _) = sorted(replays.of_scenario(workshop.db, DEFAULT_OWNER, "task"), key=lambda one: -one.times)
    assert (first.id, first.times, first.trained) == (good.id, 1, True)


def test_without_the_setting_nothing_is_trained_again(workshop: Workshop) -> None:
    trained(workshop, [1.0, 0.0])
    scored(workshop, [0.5, 0.0])
    workshop.training().carry_out(workshop.ask())
    assert not workshop.worker.batches[-1].replayed.any()
    assert len(workshop.worker.batches[-1].sequences) == 2


def test_where_all_new_sessions_are_equally_short_of_the_best_a_run_trains_it_alone(workshop: Workshop) -> None:
    good = trained(workshop, [1.0, 0.0])
    alike = scored(workshop, [0.75, 0.75])
    assert groups.get(workshop.db, alike.id).state is GroupState.SKIPPED
    replaying = {"train": {"replay": True}}
    assert workshop.cycle(**replaying).enough()
    assert not workshop.cycle().enough()
    run = workshop.training(**replaying).carry_out(workshop.ask())
    assert (run.state, run.version) == (RunState.SUCCEEDED, 2)
    assert workshop.worker.batches[-1].replayed.tolist() == [True, True]
    # Once: the next one has nothing new.
    assert not workshop.cycle(**replaying).enough()
    assert workshop.training(**replaying).carry_out(workshop.ask()).state is RunState.SKIPPED
    assert workshop.outcome(good.members[0].session) is not None


def test_a_scenario_whose_new_sessions_all_have_the_best_is_left_alone(workshop: Workshop) -> None:
    trained(workshop, [1.0, 0.0])
    scored(workshop, [1.0, 1.0])
    replaying = {"train": {"replay": True}}
    assert workshop.training(**replaying).carry_out(workshop.ask()).state is RunState.SKIPPED
    assert not workshop.cycle(**replaying).enough(), "what a run has looked at is not new"


def test_scenarios_have_bests_of_their_own(workshop: Workshop) -> None:
    trained(workshop, [1.0, 0.0], "other")
    scored(workshop, [0.5, 0.0])
    workshop.training().carry_out(workshop.ask(replay=True))
    assert not workshop.worker.batches[-1].replayed.any()


def test_a_replay_that_kills_runs_is_not_held_against_new_groups_for_ever(workshop: Workshop) -> None:
    good = trained(workshop, [1.0, 0.0])
    new = scored(workshop, [0.5, 0.0])
    workshop.worker.plan = ["failed"]
    training = workshop.training()
    assert training.carry_out(workshop.ask(replay=True)).state is RunState.FAILED
    assert groups.failed_runs(workshop.db, good.id) == 0
    again = training.carry_out(workshop.ask(replay=True))
    assert again.state is RunState.SUCCEEDED
    assert groups.get(workshop.db, new.id).run == again.id
    assert not workshop.worker.batches[-1].replayed.any()


def test_what_can_no_longer_be_read_is_left_out_and_keeps_its_end(workshop: Workshop) -> None:
    good = trained(workshop, [1.0, 0.0])
    workshop.db.execute("UPDATE calls SET not_trainable = 'gone' WHERE session = ?", (good.members[1].session,))
    scored(workshop, [0.5, 0.0])
    workshop.training().carry_out(workshop.ask(replay=True))
    batch = workshop.worker.batches[-1]
    assert np.array_equal(batch.advantages[batch.replayed], [0.5])
    assert workshop.outcome(good.members[1].session) is not None
    assert sessions.has_outcome(workshop.db, good.members[1].session)
