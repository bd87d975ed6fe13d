"""Progress along the versions: planted effects, the plain regression beside it, and what must not be compared."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import groups, progress, scenarios
from storage.progress import Progress, Scored, along, connected, fit
from storage.states import GroupState
from storage.types import DEFAULT_OWNER, GroupId, Member, VersionNumber
from tests.storage.recorded import Recorded, call_start

Plan = Sequence[tuple[int, float]]
"""Of each member its version and reward."""


def scored(*plans: Plan) -> list[Scored]:
    return [
        Scored(f"g{number}", VersionNumber(version), reward)
        for number, plan in enumerate(plans)
        for version, reward in plan
    ]


def effects(members: Sequence[Scored]) -> dict[int, float | None]:
    return {one.version: one.effect for one in along(members, absolute=False)}


def group(recorded: Recorded, name: str, plan: Plan, judge: str = "judge-1", split: str = "train") -> GroupId:
    """A scored group whose members' calls name the version that answers, whatever the session is pinned to."""
    names = [f"{name}{number}" for number in range(len(plan))]
    for session, (version, _) in zip(names, plan, strict=True):
        pinned = VersionNumber(9)
        recorded.call(call_start(session, version=VersionNumber(version), pinned=pinned, split=split), "hello")
        recorded.close(session)
    recorded.take_in()
    members = [recorded.session(session) for session in names]
    assert groups.claim(recorded.db, GroupId(name), members, 5.0)
    with recorded.db.transaction():
        found = [Member(session.key, reward) for session, (_, reward) in zip(members, plan, strict=True)]
        groups.set_scores(recorded.db, groups.get(recorded.db, GroupId(name)), found, groups.Verdict(judge), 6.0)
    return GroupId(name)


def test_a_chain_of_groups_is_summed_along() -> None:
    # The groups differ by how easy they are (0.1, 0.6, -3), which tells nothing of versions.
    found = effects(scored([(0, 0.1), (1, 0.3)], [(1, 0.6), (2, 0.65)], [(2, -3.0), (3, -2.5)]))
    assert found == pytest.approx({0: 0.0, 1: 0.2, 2: 0.25, 3: 0.75})


def test_planted_effects_are_recovered_within_their_errors() -> None:
    chance = random.Random(3)
    planted = {version: 0.1 * version for version in range(8)}
    off: list[float] = []
    for _ in range(40):
        plans: list[Plan] = []
        for newest in [version for version in range(1, 8) for _ in range(4)]:
            level = chance.uniform(0, 1)
            versions = [newest] * 6 + [newest - 1] * 2
            plans.append([(version, level + planted[version] + chance.gauss(0, 0.05)) for version in versions])
        last = along(scored(*plans), absolute=False)[-1]
        assert last.effect is not None
        assert last.standard_error is not None
        assert last.effect == pytest.approx(planted[7], abs=5 * last.standard_error)
        off.append((last.effect - planted[7]) / last.standard_error)
    # In units of the standard error the errors spread by about 1.
    assert 0.7 < np.std(off) < 1.35


def _by_lstsq(members: Sequence[Scored], versions: Sequence[int]) -> tuple[list[float], list[float]]:
    """Effects and standard errors of all but the first of ``versions``: a dummy for each group and each of these."""
    names = sorted({one.group for one in members})
    design = np.array(
        [
            [one.group == name for name in names] + [one.version == version for version in versions[1:]]
            for one in members
        ],
        dtype=float,
    )
    rewards = np.array([one.reward for one in members])
    found, _, rank, _ = np.linalg.lstsq(design, rewards, rcond=None)
    assert rank == design.shape[1]
    left = rewards - design @ found
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * (left @ left) / (len(members) - rank))
    return found[len(names) :].tolist(), errors[len(names) :].tolist()


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 6), st.integers(2, 8))
def test_it_is_the_regression_on_all_dummies(chance: random.Random, versions: int, size: int) -> None:
    plans = [
        [(chance.choice([newest, newest - 1]), chance.random()) for _ in range(size - 2)]
        + [(newest, chance.random()), (newest - 1, chance.random())]
        for newest in range(1, versions)
        for _ in range(2)
    ]
    members = scored(*plans)
    found = fit(members)
    wanted, errors = _by_lstsq(members, range(versions))
    assert [found[VersionNumber(version)].value for version in range(1, versions)] == pytest.approx(wanted)
    assert [found[VersionNumber(version)].standard_error for version in range(1, versions)] == pytest.approx(errors)


def test_where_nothing_is_left_to_tell_the_noise_by_there_is_no_standard_error() -> None:
    old, new = along(scored([(0, 0.0), (1, 1.0)]), absolute=False)
    assert (old.standard_error, new.effect, new.standard_error) == (None, 1.0, None)


def test_versions_that_no_chain_connects_are_not_compared() -> None:
    members = scored([(0, 0.0), (1, 1.0)], [(4, 0.0), (3, 0.5)], [(6, 1.0), (6, 0.0)])
    found = along(members, absolute=False)
    assert [(one.version, one.reference, one.effect) for one in found] == [
        (0, 0, 0.0),
        (1, 0, 1.0),
        (3, 3, 0.0),
        (4, 3, -0.5),
        (6, 6, None),
    ]
    assert [one.reason for one in found[:2]] == [None, None]
    assert {one.reason for one in found[2:]} == {"unconnected: no chain of groups leads to version 0"}
    # A group that holds both joins them.
    joined = along([*members, *scored([(1, 0.0), (3, 0.0)])], absolute=False)
    assert [one.reference for one in joined] == [0, 0, 0, 0, 6]


def test_chains_are_joined_in_whatever_order_the_groups_come() -> None:
    links = scored(*[[(version, 0.0), (version + 1, 0.0)] for version in range(20)])
    for seed in range(5):
        random.Random(seed).shuffle(links)
        assert set(connected(links).values()) == {0}


def test_a_group_of_a_single_version_adds_nothing() -> None:
    shared = [[(0, 0.0), (0, 0.2), (1, 1.0), (1, 0.9)], [(0, 0.1), (1, 0.4)]]
    with_it = scored(*shared, [(1, 5.0), (1, -5.0), (1, 0.0)])
    assert fit(with_it) == fit(scored(*shared))
    assert [one.sessions for one in along(with_it, absolute=False)] == [3, 6]


def test_the_groups_of_a_scenario_count_by_the_versions_that_answered(recorded: Recorded) -> None:
    group(recorded, "a", [(0, 0.2), (0, 0.2), (1, 0.7), (1, 0.7)])
    assert progress.of_scenario(recorded.db, DEFAULT_OWNER, "another") == {}
    found = progress.of_scenario(recorded.db, DEFAULT_OWNER, "task")
    assert list(found) == ["ruler"]
    assert [(one["version"], one["sessions"], one["mean"]) for one in found["ruler"]] == [(0, 2, None), (1, 2, None)]
    assert [one["effect"] for one in found["ruler"]] == pytest.approx([0.0, 0.5])
    (listed,) = scenarios.rows(recorded.db, {}, 10, None)
    assert listed["progress"] == found


def test_sources_are_kept_apart(recorded: Recorded) -> None:
    group(recorded, "a", [(0, 0.0), (1, 1.0)])
    group(recorded, "b", [(1, 10.0), (1, 12.0), (2, 14.0)], judge=groups.CLIENTS)
    group(recorded, "c", [(0, 3.0), (1, 1.0)], judge=groups.WEIGHTED)
    found = {
        source: {one["version"]: (one["effect"], one["mean"]) for one in listed}
        for source, listed in progress.of_scenario(recorded.db, DEFAULT_OWNER, "task").items()
    }
    assert found == {
        "client": {1: (0.0, 11.0), 2: (pytest.approx(3.0), 14.0)},
        "client, weighted": {0: (0.0, None), 1: (pytest.approx(-2.0), None)},
        "ruler": {0: (0.0, None), 1: (pytest.approx(1.0), None)},
    }


def test_groups_without_variance_and_for_evaluation_count(recorded: Recorded) -> None:
    even = group(recorded, "a", [(0, 0.5), (1, 0.5)])
    groups.move(recorded.db, groups.get(recorded.db, even), GroupState.SKIPPED, "no variance")
    evaluated = group(recorded, "b", [(0, 0.0), (1, 0.5)], split="eval")
    groups.move(recorded.db, groups.get(recorded.db, evaluated), GroupState.EVAL)
    (_, new) = progress.of_scenario(recorded.db, DEFAULT_OWNER, "task")["ruler"]
    # The mean of 0 and 0.5, each of the two groups says as much; one degree of freedom is left.
    assert new["effect"] == pytest.approx(0.25)
    assert new["standard_error"] == pytest.approx(0.25)


def test_a_session_of_several_versions_is_left_out(recorded: Recorded) -> None:
    for version in (0, 1):
        recorded.call(call_start("both", version=VersionNumber(version)), "hello")
    recorded.close("both")
    recorded.call(call_start("one", version=VersionNumber(1)), "hello")
    recorded.close("one")
    recorded.take_in()
    members = [recorded.session("both"), recorded.session("one")]
    assert groups.claim(recorded.db, GroupId("g"), members, 5.0)
    with recorded.db.transaction():
        found = [Member(session.key, 1.0) for session in members]
        groups.set_scores(recorded.db, groups.get(recorded.db, GroupId("g")), found, groups.Verdict("j"), 6.0)
    (left,) = progress.of_scenario(recorded.db, DEFAULT_OWNER, "task")["ruler"]
    assert (left["version"], left["sessions"], left["effect"]) == (1, 1, None)


def test_no_call_is_looked_at_and_groups_are_found_by_their_index(recorded: Recorded) -> None:
    asked: list[str] = []
    recorded.db.conn.set_trace_callback(asked.append)
    progress.of_scenario(recorded.db, DEFAULT_OWNER, "task")
    recorded.db.conn.set_trace_callback(None)
    (query,) = asked
    plan = [row["detail"] for row in recorded.db.all(f"EXPLAIN QUERY PLAN {query}")]
    assert not [step for step in plan if "calls" in step or "TEMP B-TREE" in step]
    searches = [step for step in plan if step.startswith("SEARCH")]
    assert [step.split(" USING ")[1] for step in searches] == [
        "INDEX groups_listed_by_scenario (scenario=?)",
        "INDEX members_by_group (group=?)",
    ]


def test_there_is_nothing_to_say_of_no_group() -> None:
    assert along([], absolute=True) == []
    assert along(scored([(2, 0.5)]), absolute=True) == [
        Progress(VersionNumber(2), 1, 0.5, VersionNumber(2), None, None, None)
    ]
