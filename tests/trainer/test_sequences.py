"""From calls to sequences: every effective token once, in the very context in which it was sampled."""

import random
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.states import CallOutcome
from storage.types import Call, CallId, Choice, VersionNumber
from trainer.batches import Sequence
from trainer.sequences import GREEDY, UNCLEAR, Trajectory, trajectory, why_not

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "structured": False}


def choice(ids: Many[int], logprob: float = -0.5, index: int = 0) -> Choice:
    return Choice(index, tuple(ids), (logprob,) * len(ids), "stop")


def call(seq: int, prompt: Many[int], *choices: Choice, **changes: Any) -> Call:
    plain = Call(
        seq=seq,
        id=CallId(f"call {seq}"),
        version=VersionNumber(0),
        outcome=CallOutcome.COMPLETE,
        not_trainable=None,
        started_at=float(seq),
        sampling=NEUTRAL,
        prompt_ids=tuple(prompt),
        choices=choices,
    )
    return replace(plain, **changes)


def trained(sequence: Sequence) -> list[int]:
    return [int(token) for token in sequence.ids[sequence.trained]]


def ids(sequence: Sequence) -> list[int]:
    return [int(token) for token in sequence.ids]


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


def test_of_several_answers_at_the_end_none_is_trained() -> None:
    """The judge sees but the first of them."""
    first = call(1, [10], choice([20]))
    last = call(2, [10, 20, 30], choice([40], index=0), choice([41], index=1))
    found = trajectory([first, last])
    assert [(ids(one), trained(one)) for one in found.sequences] == [([10, 20], [20])]
    assert found.left_out == {"call 2": UNCLEAR}
    assert found.last_call == 2
    alone = trajectory([first, replace(last, choices=(choice([40], index=0), choice([], index=1)))])
    assert [trained(one) for one in alone.sequences] == [[20, 40]], "only one says anything"


def test_answers_that_nobody_continued_are_left_out_with_the_reason() -> None:
    asked = call(1, [10], choice([20], index=0), choice([21], index=1))
    found = trajectory([asked, call(2, [10, 99, 30], choice([40]))])
    assert [trained(sequence) for sequence in found.sequences] == [[40]]
    assert found.left_out == {"call 1": UNCLEAR}


def test_equal_answers_to_equal_prompts_are_each_trained() -> None:
    found = trajectory([call(1, [10], choice([20], -0.1)), call(2, [10], choice([20], -0.2))])
    assert [trained(sequence) for sequence in found.sequences] == [[20], [20]]
    assert [round(float(sequence.logprobs[1]), 3) for sequence in found.sequences] == [-0.1, -0.2]


_REASONS: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"temperature": 0.0}, GREEDY),
    ({"temperature": 0}, GREEDY),
    ({"structured": True}, "sampled under a grammar"),
    ({"logit_bias": True}, "sampled under a logit bias"),
    ({"logits_processors": True}, "sampled under logits processors"),
    ({"min_p": 0.1}, "sampled under min_p"),
    ({"presence_penalty": 0.5}, "sampled under presence_penalty"),
    ({"frequency_penalty": -0.5}, "sampled under frequency_penalty"),
    ({"repetition_penalty": 1.1}, "sampled under repetition_penalty"),
    ({"min_tokens": 5}, "sampled under min_tokens"),
    ({"min_tokens": 0}, None),
    ({"structured": True, "min_p": 0.1}, "sampled under a grammar, min_p"),
    ({"repetition_penalty": None, "min_p": None, "seed": 7, "n": 3}, None),
]


@pytest.mark.parametrize(("changes", "reason"), _REASONS)
def test_what_the_engine_cannot_vouch_for_is_left_out(changes: dict[str, Any], reason: str | None) -> None:
    odd = call(1, [10], choice([20]), sampling=NEUTRAL | changes)
    good = call(2, [10, 20, 30], choice([40]))
    assert why_not(odd) == reason
    found = trajectory([odd, good])
    assert found.left_out == ({"call 1": reason} if reason else {})
    assert [trained(sequence) for sequence in found.sequences] == [[40] if reason else [20, 40]]
    assert found.last_call == 2


def test_what_storage_calls_not_trainable_is_left_out() -> None:
    lost = call(1, [], outcome=CallOutcome.TRUNCATED, not_trainable="the stream ended early", sampling={})
    silent = call(2, [10], choice([]))
    found = trajectory([lost, silent])
    assert found.sequences == ()
    assert found.left_out == {"call 1": "the stream ended early", "call 2": "nothing was sampled"}


def test_the_transcript_ends_at_the_last_call_that_was_delivered() -> None:
    gone = {"outcome": CallOutcome.CLIENT_GONE, "not_trainable": "the client left"}
    assert trajectory([]).last_call is None
    assert trajectory([call(1, [10], choice([20]), **gone)]).last_call is None
    assert trajectory([call(1, [10], choice([20])), call(2, [10, 20], choice([30]), **gone)]).last_call == 1
    # The order is that of the beginning, not that of the rows.
    assert trajectory([call(1, [10], choice([20]), started_at=9.0), call(2, [11], choice([21]))]).last_call == 1


@dataclass
class _Session:
    calls: list[Call]
    effective: dict[float, tuple[int, ...]]
    """For the logprob of each effective sampled token: the context in which it was sampled, and the token."""


@st.composite
def _sessions(draw: st.DrawFn) -> _Session:
    """A session of calls over three tokens: fresh prompts, continuations, drifts and repeats, one to three answers."""
    tokens = st.lists(st.integers(1, 3), max_size=3)
    numbers = count(1)
    calls: list[Call] = []
    for seq in range(draw(st.integers(0, 7))):
        prompt = draw(tokens)
        if bool(calls) and draw(st.integers(0, 3)) > 0:
            earlier = draw(st.sampled_from(calls))
            said = draw(st.sampled_from(earlier.choices)).ids
            drifted = (*said[:-1], 4) if said and draw(st.integers(0, 3)) == 0 else said
            prompt = [*earlier.prompt_ids, *drifted, *prompt]
        choices = tuple(
            Choice(index, tuple(said), tuple(-next(numbers) / 1024 for _ in said), "stop")
            for index, said in enumerate(draw(st.lists(tokens, min_size=1, max_size=3)))
        )
        greedy = draw(st.integers(0, 5)) == 0
        calls.append(call(seq, prompt, *choices, sampling=NEUTRAL | {"temperature": 0.0 if greedy else 1.0}))
    return _Session(calls, _effective([c for c in calls if why_not(c) is None]))


def _effective(calls: list[Call]) -> dict[float, tuple[int, ...]]:
    """A choice counts when it was the only one, or was continued."""
    effective = {}
    for place, asked in enumerate(calls):
        later = [after.prompt_ids for after in calls[place + 1 :]]
        said = [c for c in asked.choices if c.ids]
        for one in said:
            whole = asked.prompt_ids + one.ids
            continued = any(prompt[: len(whole)] == whole for prompt in later)
            if len(said) == 1 or continued:
                for place_in, logprob in enumerate(one.logprobs):
                    effective[logprob] = asked.prompt_ids + one.ids[: place_in + 1]
    return effective


def _trained_tokens(found: Trajectory) -> list[tuple[float, tuple[int, ...]]]:
    return [
        (float(sequence.logprobs[place]), tuple(ids(sequence)[: place + 1]))
        for sequence in found.sequences
        for place in range(len(sequence))
        if sequence.trained[place]
    ]


@given(_sessions(), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_every_effective_token_is_trained_once_in_its_own_context(session: _Session, chance: random.Random) -> None:
    found = trajectory(session.calls)
    tokens = _trained_tokens(found)
    assert sorted(tokens) == sorted(session.effective.items())
    # Every sequence, to its end, is what the model saw and said in one call.
    seen = {c.prompt_ids + said.ids for c in session.calls for said in c.choices}
    assert all(tuple(ids(sequence)) in seen for sequence in found.sequences)
    assert all(sequence.trained_tokens for sequence in found.sequences)
    # A call is trained, or is said not to be.
    for asked in session.calls:
        logprobs = {logprob for said in asked.choices for logprob in said.logprobs}
        assert (asked.id in found.left_out) != bool(logprobs & session.effective.keys())
    shuffled = list(session.calls)
    chance.shuffle(shuffled)
    again = trajectory(shuffled)
    assert [ids(sequence) for sequence in again.sequences] == [ids(sequence) for sequence in found.sequences]
    assert _trained_tokens(again) == tokens
    assert (again.left_out, again.last_call) == (found.left_out, found.last_call)
