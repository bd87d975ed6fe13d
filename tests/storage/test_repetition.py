"""Which scenarios repeat themselves: greedy ones by their twins, sampled ones when hardly anything differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from storage.repetition import Repetition, repeated
from storage.types import DEFAULT_OWNER, Owner
from tests.storage.recorded import Recorded, call_start, capture, identity


def attempt(recorded: Recorded, session: str, *answers: Sequence[int], temperature: float = 0.0, **start: Any) -> None:
    """A closed session with one call for each answer."""
    owner = start.pop("owner", DEFAULT_OWNER)
    for turn, ids in enumerate(answers):
        tokens = capture([1, turn], ids, temperature=temperature)
        recorded.call(call_start(session, identity=identity(session, owner), **start), f"turn {turn}", tokens)
    recorded.close(session, owner=owner)


def attempts(recorded: Recorded, answers: Sequence[int], **options: Any) -> list[Repetition]:
    """One session for each answer of one token."""
    for number, answer in enumerate(answers):
        attempt(recorded, f"s{number}", [answer, 7], **options)
    recorded.take_in()
    return repeated(recorded.db)


def told(distinct: int, sessions: int, *, greedy: bool, owner: str = DEFAULT_OWNER) -> Repetition:
    return Repetition(Owner(owner), "task", sessions, distinct, greedy)


@pytest.mark.parametrize(
    ("answers", "distinct"),
    [([5, 5, 5, 5], 1), ([5, 5, 5, 6, 8], 3), ([5, 5, 6, 6], 2)],
)
def test_greedy_sessions_of_which_most_have_a_twin(recorded: Recorded, answers: list[int], distinct: int) -> None:
    assert attempts(recorded, answers) == [told(distinct, len(answers), greedy=True)]


@pytest.mark.parametrize("answers", [[5, 5, 5], [5, 6, 8, 9], [5, 5, 6, 8]])
def test_greedy_sessions_that_are_few_or_differ(recorded: Recorded, answers: list[int]) -> None:
    assert attempts(recorded, answers) == []


def test_sampled_sessions_may_have_twins_and_learn(recorded: Recorded) -> None:
    assert attempts(recorded, [5, 5, 5, 6, 6, 6, 8, 8], temperature=1.0) == []


def test_sampled_sessions_that_hardly_differ(recorded: Recorded) -> None:
    assert attempts(recorded, [5, 5, 5, 5, 5, 5, 5, 6], temperature=1.0) == [told(2, 8, greedy=False)]


def test_sessions_that_differ_in_a_later_turn_only(recorded: Recorded) -> None:
    for number in range(4):
        attempt(recorded, f"s{number}", [5], [number])
    recorded.take_in()
    assert repeated(recorded.db) == []


def test_where_the_tokens_are_divided_makes_a_difference(recorded: Recorded) -> None:
    for number, answers in enumerate(([[5, 6]], [[5], [6]], [[5, 6], []], [[], [5, 6]])):
        attempt(recorded, f"s{number}", *answers)
    recorded.take_in()
    assert repeated(recorded.db) == []


def test_evaluations_open_sessions_other_scenarios_and_other_owners_are_not_compared(recorded: Recorded) -> None:
    for number in range(4):
        attempt(recorded, f"eval {number}", [5], split="eval")
        attempt(recorded, f"scenario {number}", [5], scenario=f"task {number}")
        attempt(recorded, f"owner {number}", [5], owner=f"owner {number % 2}")
        recorded.call(call_start(f"open {number}"), "x", capture([1], [5], temperature=0.0))
        attempt(recorded, f"nothing captured {number}", [], scenario="nothing")
    recorded.take_in()
    assert repeated(recorded.db) == []


def test_only_the_last_sessions_count(recorded: Recorded) -> None:
    assert attempts(recorded, [5] * 8 + [10 + n for n in range(16)]) == []


def test_a_long_past_costs_nothing(recorded: Recorded) -> None:
    """Rows looked at, counted by SQLite itself: as many with ten times the sessions."""

    def steps() -> int:
        seen = 0

        def count() -> int:
            nonlocal seen
            seen += 1
            return 0

        recorded.db.conn.set_progress_handler(count, 1)
        repeated(recorded.db)
        recorded.db.conn.set_progress_handler(None, 0)
        return seen

    for number in range(300):
        attempt(recorded, f"a{number}", [number], scenario=f"task {number % 5}")
    recorded.take_in()
    few = steps()
    for number in range(2700):
        attempt(recorded, f"b{number}", [number], scenario=f"task {number % 5}")
    recorded.take_in()
    assert steps() <= 1.2 * few
