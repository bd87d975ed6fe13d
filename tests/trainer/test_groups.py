"""Which closed sessions become a group."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.states import ClosedBy, SessionState
from storage.types import Owner, Session, SessionKey, VersionNumber
from trainer.groups import choose
from trainer.settings import GroupSettings

NOW = 10_000.0
SETTINGS = GroupSettings(size=4, min_size=2, max_wait=100.0)

_keys = count(1)


def session(scenario: str = "task", owner: str = "default", split: str = "train", age: float = 1.0) -> Session:
    key = next(_keys)
    return Session(
        key=SessionKey(key),
        owner=Owner(owner),
        session_id=f"s{key}",
        episode=1,
        scenario=scenario,
        split=split,
        state=SessionState.CLOSED,
        closed_by=ClosedBy.ENDED,
        reason=None,
        version=VersionNumber(0),
        opened_at=0.0,
        last_call_at=0.0,
        closed_at=NOW - age,
        calls=1,
    )


@pytest.mark.parametrize(
    ("waiting", "asked", "age", "sizes"),
    [
        (0, False, 1.0, []),
        (3, False, 1.0, []),
        (4, False, 1.0, [4]),
        (5, False, 1.0, [4]),
        (8, False, 1.0, [4, 4]),
        (11, False, 1.0, [4, 4]),
        # A run was asked for: those that are left are enough from min_size on.
        (1, True, 1.0, []),
        (2, True, 1.0, [2]),
        (3, True, 1.0, [3]),
        (5, True, 1.0, [4]),
        (6, True, 1.0, [4, 2]),
        # The oldest has waited for long.
        (1, False, 100.0, []),
        (3, False, 99.9, []),
        (3, False, 100.0, [3]),
        (7, False, 100.0, [4, 3]),
    ],
)
def test_sizes(waiting: int, asked: bool, age: float, sizes: list[int]) -> None:
    sessions = [session(age=age) for _ in range(waiting)]
    groups = choose(sessions, SETTINGS, NOW, asked={None} if asked else ())
    assert [len(group) for group in groups] == sizes
    taken = [member for group in groups for member in group]
    assert taken == sessions[: len(taken)], "the oldest go first"


def test_the_oldest_of_those_that_are_left_decides() -> None:
    old, young = [session(age=200.0) for _ in range(4)], [session(age=50.0) for _ in range(3)]
    assert choose(old + young, SETTINGS, NOW) == [old]
    young[0] = session(age=100.0)
    assert choose(old + young, SETTINGS, NOW) == [old, young]


def test_scenarios_take_turns() -> None:
    many = [session("a") for _ in range(12)]
    few = [session("b") for _ in range(4)]
    groups = choose(many + few, SETTINGS, NOW)
    assert [group[0].scenario for group in groups] == ["a", "b", "a", "a"]


def test_a_request_for_one_scenario_leaves_the_others_alone() -> None:
    waiting = [session(scenario) for _ in range(3) for scenario in ("a", "b", "c")]
    for asked, formed in (({"a"}, ["a"]), ({"a", "c"}, ["a", "c"]), ({"a", None}, ["a", "b", "c"]), (set(), [])):
        found = choose(waiting, SETTINGS, NOW, asked=asked)
        assert [group[0].scenario for group in found] == formed


def test_what_does_not_belong_together_is_never_mixed() -> None:
    mixed = [
        session(scenario, owner, split)
        for _ in range(3)
        for scenario in ("a", "b")
        for owner in ("one", "two")
        for split in ("train", "eval")
    ]
    assert choose(mixed, SETTINGS, NOW) == []
    groups = choose(mixed, SETTINGS, NOW, asked={None})
    assert [len(group) for group in groups] == [3] * 8
    assert all(len({(s.owner, s.scenario, s.split) for s in group}) == 1 for group in groups)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from(["train", "eval"]), st.floats(0, 300)),
        max_size=40,
    ),
    st.booleans(),
    st.integers(2, 6),
    st.integers(2, 6),
)
def test_any_crowd(crowd: list[tuple[str, str, str, float]], asked: bool, size: int, min_size: int) -> None:
    waiting = sorted((session(*one) for one in crowd), key=lambda s: s.closed_at or 0.0)
    groups = choose(
        waiting, GroupSettings(size=size, min_size=min_size, max_wait=100.0), NOW, asked={None} if asked else ()
    )
    taken = [member.key for group in groups for member in group]
    assert len(set(taken)) == len(taken)
    for group in groups:
        assert len({(s.owner, s.scenario, s.split) for s in group}) == 1
        assert min(size, min_size) <= len(group) <= size
    # Where a whole group could still be formed, none is left waiting.
    left = [(s.owner, s.scenario, s.split) for s in waiting if s.key not in taken]
    assert all(left.count(kind) < size for kind in left)
