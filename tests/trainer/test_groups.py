"""Which closed sessions become a group."""

from collections.abc import Collection, Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.states import ClosedBy, SessionState
from storage.types import Owner, Session, SessionKey, VersionNumber
from trainer.groups import MOST_SECONDS_APART, Candidate, Rules
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


def choose(
    waiting: Sequence[Session], settings: GroupSettings, now: float, *, asked: Collection[str | None] = ()
) -> list[list[Session]]:
    return Rules(settings, 4).choose([Candidate(one, 0) for one in waiting], now, asked=asked)


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


DAY = MOST_SECONDS_APART


def test_members_end_within_a_day_of_each_other() -> None:
    """The old one waits in vain, and holds up nobody."""
    settings = GroupSettings(size=3, min_size=2, max_wait=10 * DAY)
    old = session(age=DAY + 10)
    near = [session(age=age) for age in (10.0, 9.0)]
    assert choose([old, *near], settings, NOW) == []
    last = session(age=8.0)
    assert choose([old, *near, last], settings, NOW) == [[*near, last]]
    within = [session(age=age) for age in (DAY, 5.0, 0.0)]
    assert choose(within, settings, NOW) == [within]


def test_members_lie_no_more_versions_apart_than_is_allowed() -> None:
    waiting = [session() for _ in range(6)]
    behind = [5, 0, 4, 1, 2, 3]
    candidates = [Candidate(one, steps) for one, steps in zip(waiting, behind, strict=True)]
    rules = Rules(GroupSettings(size=4, min_size=4, max_wait=10 * DAY), 4)
    (group,) = rules.choose(candidates, NOW)
    assert group == [waiting[0], waiting[2], waiting[3], waiting[4]], "the oldest, and who is near enough to all"
    assert rules.choose([candidates[1], *candidates[:1]], NOW, asked={None}) == []


@pytest.mark.parametrize(
    ("age", "max_wait", "lonely"),
    [(DAY - 1, 3600.0, False), (DAY + 1, 3600.0, True), (DAY + 1, 2 * DAY, False), (2 * DAY + 1, 2 * DAY, True)],
)
def test_who_has_waited_for_a_day_is_joined_by_nobody(age: float, max_wait: float, lonely: bool) -> None:
    assert Rules(GroupSettings(max_wait=max_wait), 4).is_lonely(session(age=age), NOW) is lonely


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
        st.tuples(
            st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from(["train", "eval"]), st.floats(0, 3 * DAY),
            st.integers(0, 6),
        ),
        max_size=40,
    ),
    st.booleans(),
    st.integers(2, 6),
    st.integers(2, 6),
    st.integers(1, 6),
)  # fmt: skip
def test_any_crowd(
    crowd: list[tuple[str, str, str, float, int]], asked: bool, size: int, min_size: int, staleness: int
) -> None:
    candidates = [Candidate(session(*one), behind) for *one, behind in crowd]  # type: ignore[arg-type]
    candidates.sort(key=lambda one: one.closed_at)
    rules = Rules(GroupSettings(size=size, min_size=min_size, max_wait=DAY), staleness)
    groups = rules.choose(candidates, NOW, asked={None} if asked else ())
    behind = {one.session.key: one.behind for one in candidates}
    taken = [member.key for group in groups for member in group]
    assert len(set(taken)) == len(taken)
    for group in groups:
        assert len({(s.owner, s.scenario, s.split) for s in group}) == 1
        assert min(size, min_size) <= len(group) <= size
        times = [s.closed_at or 0.0 for s in group]
        assert times == sorted(times)
        assert times[-1] - times[0] <= DAY
        versions = [behind[s.key] for s in group]
        assert max(versions) - min(versions) <= staleness
    # Where a whole group could still be formed around one, it does not wait.
    left = [one for one in candidates if one.session.key not in taken]
    assert all(len(group) < size for group in Rules(GroupSettings(size=size), staleness).choose(left, 0.0))
    # First every kind's first group, then every one's second.
    order = [(group[0].owner, group[0].scenario, group[0].split) for group in groups]
    rounds = [order[:place].count(kind) for place, kind in enumerate(order)]
    assert rounds == sorted(rounds)
