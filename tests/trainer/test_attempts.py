"""What the judge reads of a session: every conversation of it, in the order of time."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.exchanges import Exchange
from trainer.attempts import attempt

Message = dict[str, Any]

LOOK, OPEN = {"name": "look"}, {"name": "open"}


def user(text: str, **marks: Any) -> Message:
    return {"role": "user", "content": text, **marks}


def said(text: str, **marks: Any) -> Message:
    return {"role": "assistant", "content": text, **marks}


def call(seq: int, messages: list[Message], *answers: str, **changes: Any) -> Exchange:
    """A call that goes on from the first answer of ``parent``, where one is named; it began at second ``seq``."""
    parent = changes.pop("parent", None)
    values: dict[str, Any] = {
        "dialect": "chat",
        "complete": True,
        "continues": None if parent is None else 0,
        "response_id": None,
        "agent": None,
        "started_at": float(seq),
        "tools": [],
    }
    return Exchange(seq=seq, parent=parent, messages=messages, output=[said(a) for a in answers], **values | changes)


def shown(*calls: Exchange) -> list[Message]:
    return list(attempt(calls).messages)


def test_a_conversation_is_shown_as_it_went() -> None:
    calls = [call(1, [user("go")], "left"), call(2, [user("and?")], "right", parent=1, tools=[LOOK])]
    assert shown(*calls) == [user("go"), said("left"), user("and?"), said("right")]
    assert attempt(calls).tools == (LOOK,)


def test_a_sub_agent_is_shown_where_it_spoke() -> None:
    calls = [
        call(1, [user("book a trip")], "I ask the pilot", agent="planner", tools=[LOOK]),
        call(2, [user("fly?")], "yes", agent="pilot", tools=[OPEN, LOOK]),
        call(3, [user("sure?")], "quite", agent="pilot", parent=2),
        call(4, [user("the pilot can")], "booked", agent="planner", parent=1),
    ]
    assert shown(*calls) == [
        user("book a trip"),
        said("I ask the pilot"),
        user("fly?", conversation=2),
        said("yes", conversation=2, agent="pilot"),
        user("sure?", conversation=2),
        said("quite", conversation=2, agent="pilot"),
        user("the pilot can"),
        said("booked"),
    ]
    assert attempt(calls).tools == (LOOK, OPEN)


def test_calls_that_overlap_stand_in_the_order_in_which_they_began() -> None:
    slow = call(3, [user("slow?")], "slow", started_at=1.0)  # they are numbered as they ended
    fast = call(2, [user("fast?")], "fast", started_at=2.0)
    assert [one["content"] for one in shown(fast, slow)] == ["slow?", "slow", "fast?", "fast"]


def test_a_branch_says_where_it_left() -> None:
    calls = [
        call(1, [user("go")], "left"),
        call(2, [user("and?")], "right", parent=1),
        call(3, [user("or?")], "up", parent=1),
        call(4, [user("go again")], "down", parent=1, continues=None),
    ]
    assert shown(*calls)[4:] == [
        user("or?", conversation=2, after={"conversation": 1, "messages": 2}),
        said("up", conversation=2),
        user("go again", conversation=3, after={"conversation": 1, "messages": 1}),
        said("down", conversation=3),
    ]


def test_a_history_that_was_rewritten_is_shown_beside_the_first() -> None:
    calls = [call(1, [user("go")], "left"), call(2, [user("so far: left")], "right")]
    assert shown(*calls)[2:] == [user("so far: left", conversation=2), said("right", conversation=2)]


def test_an_answer_that_the_agent_restates_is_shown_as_it_went_on() -> None:
    calls = [call(1, [user("go")], "<think>hm</think>left"), call(2, [said("left"), user("and?")], "right", parent=1)]
    restated = [calls[0], Exchange(**{f: getattr(calls[1], f) for f in Exchange.__slots__} | {"continues": None})]
    assert shown(*restated) == [user("go"), said("left"), user("and?"), said("right")]


def test_of_several_answers_the_one_that_was_taken_is_shown_and_at_the_end_all() -> None:
    calls = [call(1, [user("go")], "a", "b", "c"), call(2, [user("and?")], "x", "y", parent=1, continues=1)]
    assert shown(*calls) == [user("go"), said("b"), user("and?"), said("x", choice=1), said("y", choice=2)]


def test_another_answer_that_was_taken_too_opens_a_conversation() -> None:
    calls = [
        call(1, [user("go")], "a", "b"),
        call(2, [user("1?")], "x", parent=1, continues=0),
        call(3, [user("2?")], "y", parent=1, continues=1),
    ]
    assert shown(*calls)[4:] == [
        said("b", conversation=2, after={"conversation": 1, "messages": 1}, choice=2),
        user("2?", conversation=2),
        said("y", conversation=2),
    ]


@pytest.mark.parametrize("output", [(), ("half",)])
def test_a_call_without_a_whole_answer_is_left_out(output: tuple[str, ...]) -> None:
    calls = [call(1, [user("go")], "left"), call(2, [user("and?")], *output, parent=1, complete=False)]
    assert shown(*calls) == [user("go"), said("left")]


def test_what_a_call_goes_on_from_is_shown_though_it_failed() -> None:
    failed = call(1, [user("go")], complete=False)
    assert shown(failed, call(2, [user("now!")], "left", parent=1, continues=None)) == [
        user("go"),
        user("now!"),
        said("left"),
    ]


def test_a_call_behind_one_that_began_later_is_shown_behind_it() -> None:
    calls = [call(1, [user("go")], "a", started_at=9.0), call(2, [user("and?")], "b", parent=1, started_at=1.0)]
    assert [one["content"] for one in shown(*calls)] == ["go", "a", "and?", "b"]


def test_nothing_was_answered() -> None:
    assert attempt([call(1, [user("go")], complete=False)]).messages == ()


@st.composite
def trees(draw: st.DrawFn) -> list[Exchange]:
    """Calls with answers of their own, each behind an earlier one or none."""
    calls: list[Exchange] = []
    for seq in range(draw(st.integers(1, 8))):
        parent = draw(st.none() | st.sampled_from(calls)) if calls else None
        answers = [f"{seq}.{n}" for n in range(draw(st.integers(1, 3)))]
        continues = draw(st.none() | st.integers(0, len(parent.output) - 1)) if parent is not None else None
        changes = {"parent": parent.seq if parent else None, "continues": continues}
        calls.append(call(seq, [user(f"q{seq}")], *answers, started_at=draw(st.floats(0, 9)), **changes))
    return calls


@given(trees(), st.randoms())
def test_all_that_had_an_effect_is_shown_once_in_any_order_of_the_calls(calls: list[Exchange], luck: Any) -> None:
    found = shown(*calls)
    counts = Counter(message["content"] for message in found)
    taken = {(one.parent, one.continues) for one in calls if one.continues is not None}
    for one in calls:
        assert counts.pop(f"q{one.seq}") == 1
        continued = {number for seq, number in taken if seq == one.seq}
        for number in continued or range(len(one.output)):
            assert counts.pop(f"{one.seq}.{number}") >= 1
    assert not counts, "and nothing else"
    mixed = list(calls)
    luck.shuffle(mixed)
    assert shown(*mixed) == found


def test_time_orders_what_does_not_hang_together() -> None:
    calls = [call(seq, [user(str(seq))], "ok", started_at=-float(seq)) for seq in range(5)]
    asked = [one["content"] for one in shown(*calls) if one["role"] == "user"]
    assert asked == ["4", "3", "2", "1", "0"]
    assert all(shown(*order) == shown(*calls) for order in itertools.permutations(calls))
