"""From calls to sequences: every effective token once, in the very context in which it was sampled."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from typing import Any

import pytest

from storage.samplings import RAW_OR_PROCESSED, STATED
from storage.states import CallOutcome
from storage.types import Call, Choice, VersionNumber
from tests.trainer.made import NEUTRAL, call, choice, ids, trained
from trainer.sequences import CUT_OFF, NO_IDS, NO_LOGPROBS, UNUSED, last_call, recomputed_under, trajectory


def test_a_chat_of_two_turns_is_one_sequence() -> None:
    first = call(1, [10, 11], choice([20, 21], -0.25), sampling=NEUTRAL | {"temperature": 0.7, "top_k": 5})
    second = call(2, [10, 11, 20, 21, 30], choice([40], -1.5), sampling=NEUTRAL | {"top_p": 0.9, "top_k": -1})
    (sequence,) = trajectory([first, second]).sequences
    assert ids(sequence) == [10, 11, 20, 21, 30, 40]
    assert sequence.trained.tolist() == [False, False, True, True, False, True]
    assert sequence.logprobs.tolist() == [0.0, 0.0, -0.25, -0.25, 0.0, -1.5]
    assert sequence.temperature.tolist() == pytest.approx([1, 1, 0.7, 0.7, 1, 1])
    assert sequence.top_p.tolist() == pytest.approx([1, 1, 1, 1, 1, 0.9])
    assert sequence.top_k.tolist() == [0, 0, 5, 5, 0, 0]
    assert sequence.source == ("call 2", 0)


def test_a_drift_begins_a_branch_and_nothing_is_trained_twice() -> None:
    """The next prompt says 22 where 21 was sampled: a sequence of its own, in which the first answer is only read."""
    first = call(1, [10, 11], choice([20, 21]))
    second = call(2, [10, 11, 20, 22, 30], choice([40]))
    one, two = trajectory([first, second]).sequences
    assert (ids(one), trained(one)) == ([10, 11, 20, 21], [20, 21])
    assert (ids(two), trained(two)) == ([10, 11, 20, 22, 30, 40], [40])


def test_two_branches_of_one_turn_train_it_once() -> None:
    first = call(1, [10], choice([20]))
    one, two = trajectory([first, call(2, [10, 20, 30], choice([40])), call(3, [10, 20, 31], choice([41]))]).sequences
    assert (ids(one), trained(one)) == ([10, 20, 30, 40], [20, 40])
    assert (ids(two), trained(two)) == ([10, 20, 31, 41], [41])


def test_a_compacted_history_is_a_branch() -> None:
    calls = [
        call(1, [10, 11], choice([20])),
        call(2, [10, 11, 20, 12], choice([21])),
        call(3, [10, 99, 12], choice([22])),  # the history was summed up as 99
    ]
    one, two = trajectory(calls).sequences
    assert (ids(one), trained(one)) == ([10, 11, 20, 12, 21], [20, 21])
    assert (ids(two), trained(two)) == ([10, 99, 12, 22], [22])


def test_of_several_answers_the_continued_one_is_trained() -> None:
    asked = call(1, [10], choice([20], index=0), choice([21], index=1), choice([22], index=2))
    (sequence,) = trajectory([asked, call(2, [10, 21, 30], choice([40]))]).sequences
    assert (ids(sequence), trained(sequence)) == ([10, 21, 30, 40], [21, 40])


def test_of_several_answers_the_one_that_the_messages_continue_is_trained() -> None:
    """Its text is carried on, in tokens of another cut: what was sampled stays a branch."""
    asked = call(1, [10], choice([20], index=0), choice([21, 22], index=1))
    after = call(2, [10, 23, 30], choice([40]), parent=1, continues=1)
    one, two = trajectory([asked, after]).sequences
    assert (ids(one), trained(one)) == ([10, 21, 22], [21, 22])
    assert (ids(two), trained(two)) == ([10, 23, 30, 40], [40])


def test_of_several_answers_at_the_end_all_are_trained() -> None:
    first = call(1, [10], choice([20]))
    last = call(2, [10, 20, 30], choice([40], index=0), choice([41], index=1))
    found = trajectory([first, last])
    assert [(ids(one), trained(one)) for one in found.sequences] == [
        ([10, 20, 30, 40], [20, 40]),
        ([10, 20, 30, 41], [41]),
    ]
    assert found.left_out == {}
    alone = trajectory([first, replace(last, choices=(choice([40], index=0), choice([], index=1)))])
    assert [trained(one) for one in alone.sequences] == [[20, 40]], "only one says anything"


def test_answers_that_nobody_continued_are_left_out_with_the_reason() -> None:
    asked = call(1, [10], choice([20], index=0), choice([21], index=1))
    found = trajectory([asked, call(2, [10, 99, 30], choice([40]))])
    assert [trained(sequence) for sequence in found.sequences] == [[40]]
    assert found.left_out == {"call 1": UNUSED}


def test_a_call_that_cannot_be_trained_shows_what_had_an_effect() -> None:
    asked = call(1, [10], choice([20], index=0), choice([21], index=1))
    after = call(2, [10, 21, 30], choice([40]), not_trainable="its tokens are not exact")
    assert [trained(one) for one in trajectory([asked, after]).sequences] == [[21]]


def test_equal_answers_and_what_continues_them_are_as_few_sequences_as_can_be() -> None:
    """Two goes at one turn that were answered alike, and each went on: two sequences, not three."""
    twice = [call(1, [10], choice([20], -0.25)), call(2, [10], choice([20], -0.5))]
    after = [call(3, [10, 20, 30], choice([40])), call(4, [10, 20, 31], choice([41]))]
    found = trajectory([*twice, *after]).sequences
    assert sorted((ids(one), trained(one)) for one in found) == [
        ([10, 20, 30, 40], [20, 40]),
        ([10, 20, 31, 41], [20, 41]),
    ]
    assert sorted(float(one.logprobs[1]) for one in found) == [-0.5, -0.25]


def test_an_answer_goes_behind_the_longest_so_that_the_shorter_is_left_for_others() -> None:
    twice = [call(1, [10], choice([20])), call(2, [10], choice([20]))]
    behind_one = [call(3, [10, 20, 30], choice([40])), call(4, [10, 20, 30, 40, 50], choice([60]))]
    behind_other = call(5, [10, 20, 31, 32, 33, 34], choice([61]))
    found = trajectory([*twice, *behind_one, behind_other]).sequences
    assert sorted(trained(one) for one in found) == [[20, 40, 60], [20, 61]]


@pytest.mark.parametrize(
    ("finish", "limit", "is_trained"),
    [
        ("stop", 0, True),
        ("length", 2, True),
        ("length", 3, False),
        ("length", 0, False),
        ("length", None, True),  # recorded before the client's limit was kept
        ("tool_calls", 9, True),
    ],
)
def test_only_the_clients_own_limit_ends_an_answer_as_it_should(
    finish: str, limit: int | None, is_trained: bool
) -> None:
    """The session stays, with its early turns."""
    first = call(1, [10], choice([20]))
    cut = call(2, [10, 20, 30], choice([40, 41], finish=finish), token_limit=limit)
    found = trajectory([first, cut])
    assert [trained(one) for one in found.sequences] == ([[20, 40, 41]] if is_trained else [[20]])
    assert found.left_out == ({} if is_trained else {"call 2": CUT_OFF})


def test_of_several_answers_at_the_end_the_whole_ones_are_trained() -> None:
    last = call(1, [10], choice([20, 21], index=0, finish="length"), choice([22], index=1), token_limit=0)
    assert [trained(one) for one in trajectory([last]).sequences] == [[22]]


@pytest.mark.parametrize(
    ("agents", "expected"),
    [((), [20, 40, 60]), (("main",), [20, 60]), (("sub",), [40]), (("sub", "main"), [20, 40, 60]), (("other",), [])],
)
def test_only_named_agents_are_trained(agents: tuple[str, ...], expected: list[int]) -> None:
    calls = [
        call(1, [10], choice([20]), agent="main"),
        call(2, [11], choice([40]), agent="sub"),
        call(3, [10, 20, 40], choice([60]), agent="main"),
    ]
    found = trajectory(calls, agents)
    assert sorted(token for one in found.sequences for token in trained(one)) == expected
    assert len(found.left_out) == 3 - len(expected)
    if agents == ("main",):
        assert found.left_out == {"call 2": "agent 'sub' is not among those that are trained (train.agents)"}


def test_a_call_without_a_name_belongs_to_no_named_agent() -> None:
    found = trajectory([call(1, [10], choice([20]))], ["main"])
    assert found.sequences == ()
    assert found.nothing == (
        "nothing to train on: a call that names no agent is not among those that are trained (train.agents)"
    )


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (call(1, [10], choice([20, 21], math.nan)), NO_LOGPROBS),
        (call(1, [10], choice([20, 21], -math.inf)), NO_LOGPROBS),
        (call(1, [10], choice([20, 21], 0.5)), NO_LOGPROBS),
        (call(1, [10], Choice(0, array("i", [20, 21]), array("f", [-1.0]), "stop")), NO_LOGPROBS),
        (call(1, [10], choice([20, -1])), NO_IDS),
        (call(1, [-5], choice([20])), NO_IDS),
    ],
)
def test_a_call_with_impossible_numbers_is_left_out_and_the_rest_is_trained(odd: Call, reason: str) -> None:
    good = call(2, [10, 20, 30], choice([40], 0.0005))
    found = trajectory([odd, good])
    assert found.left_out == {"call 1": reason}
    assert [trained(one) for one in found.sequences] == [[40]]


def test_one_token_and_a_hundred_thousand() -> None:
    (one,) = trajectory([call(1, [10], choice([20]))]).sequences
    assert trained(one) == [20]
    prompt = array("i", range(100_000))
    turns = [
        call(turn, prompt[: 200 * turn + 100], choice(prompt[200 * turn + 100 : 200 * turn + 200]))
        for turn in range(499)
    ]
    (long,) = trajectory(turns).sequences
    assert (len(long), long.trained_tokens) == (99_800, 49_900)


def test_equal_answers_to_equal_prompts_are_each_trained() -> None:
    found = trajectory([call(1, [10], choice([20], -0.1)), call(2, [10], choice([20], -0.2))])
    assert [trained(sequence) for sequence in found.sequences] == [[20], [20]]
    assert [round(float(sequence.logprobs[1]), 3) for sequence in found.sequences] == [-0.1, -0.2]


@pytest.mark.parametrize(
    ("changes", "temperature"), [({"temperature": 0}, 1.0), ({"min_p": 0.1, "temperature": 0.5}, 0.5)]
)
def test_what_the_engine_cannot_vouch_for_is_trained_by_our_own_logprobs(
    changes: dict[str, Any], temperature: float
) -> None:
    # Whatever the engine told of such a token is not the policy's: it is not looked at.
    odd = call(1, [10], Choice(0, array("i", [20]), array("f", [math.nan]), "stop"), sampling=NEUTRAL | changes)
    good = call(2, [10, 20, 30], choice([40], -0.5), version=VersionNumber(4))
    (found,) = trajectory([odd, good]).sequences
    assert trained(found) == [20, 40]
    assert found.recomputed.tolist() == [False, True, False, False]
    assert found.logprobs.tolist() == [0, 0, 0, -0.5]
    assert found.temperature.tolist() == [1, temperature, 1, 1]
    assert recomputed_under([odd, good]) == {odd.version}


def test_it_is_left_out_where_the_version_that_sampled_it_is_lost() -> None:
    odd = call(1, [10], choice([20]), sampling=NEUTRAL | {"temperature": 0}, version=VersionNumber(3))
    good = call(2, [10, 20, 30], choice([40]), version=VersionNumber(3))
    found = trajectory([odd, good], (), {VersionNumber(3): "policy@3 is gone"})
    assert found.left_out == {
        "call 1": "sampled under temperature 0, and its logprobs cannot be computed again: policy@3 is gone"
    }
    assert [trained(sequence) for sequence in found.sequences] == [[40]]


def test_what_a_server_does_not_tell_is_taken_for_the_plain_policy() -> None:
    sampling = NEUTRAL | dict.fromkeys(STATED) | {"logprobs": RAW_OR_PROCESSED}
    (found,) = trajectory([call(1, [10], choice([20]), sampling=sampling)]).sequences
    assert found.recomputed.tolist() == [False, True]
    assert (found.temperature[1], found.top_p[1], found.top_k[1]) == (1, 1, 0)


def test_what_storage_calls_not_trainable_is_left_out() -> None:
    lost = call(1, [], outcome=CallOutcome.TRUNCATED, not_trainable="the stream ended early", sampling={})
    silent = call(2, [10], choice([]))
    found = trajectory([lost, silent])
    assert found.sequences == ()
    assert found.left_out == {"call 1": "the stream ended early", "call 2": "nothing was sampled"}


def test_the_transcript_ends_at_the_last_call_that_was_delivered() -> None:
    gone = {"outcome": CallOutcome.CLIENT_GONE, "not_trainable": "the client left"}
    assert last_call([]) is None
    assert last_call([call(1, [10], choice([20]), **gone)]) is None
    assert last_call([call(1, [10], choice([20])), call(2, [10, 20], choice([30]), **gone)]) == 1
    # The order is that of the beginning, not that of the rows.
    assert last_call([call(1, [10], choice([20]), started_at=9.0), call(2, [11], choice([21]))]) == 1
