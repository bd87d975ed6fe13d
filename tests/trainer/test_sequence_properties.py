"""Of any calls: each effective token once, in its own context, in as few sequences as can be, whatever came first."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.types import Call, Choice
from tests.trainer.made import call, ids
from trainer.sequences import Trajectory, last_call, trajectory, why_not


@dataclass
class _Session:
    calls: list[Call]
    effective: dict[float, tuple[int, ...]]
    """For the logprob of each effective sampled token: the context in which it was sampled, and the token."""


@st.composite
def _sessions(draw: st.DrawFn) -> _Session:
    """A session of calls over three tokens: fresh prompts, continuations, drifts and repeats, one to three answers.

    They overlap in time, in any order. A drift may still be known as what it continues.
    """
    tokens = st.lists(st.integers(1, 3), max_size=3)
    numbers = count(1)
    calls: list[Call] = []
    times = draw(st.permutations(range(8)))
    for seq in range(draw(st.integers(0, 7))):
        prompt: list[int] = draw(tokens)
        named: dict[str, Any] = {}
        if bool(calls) and draw(st.integers(0, 3)) > 0:
            earlier = draw(st.sampled_from(calls))
            answer = draw(st.sampled_from(earlier.choices))
            said = answer.ids.tolist()
            if said and draw(st.integers(0, 3)) == 0:
                said[-1] = 4
                named = {"parent": earlier.seq, "continues": answer.index} if draw(st.booleans()) else {}
            prompt = [*earlier.prompt_ids, *said, *prompt]
        choices = tuple(
            Choice(index, array("i", said), array("f", [-next(numbers) / 1024 for _ in said]), "stop")
            for index, said in enumerate(draw(st.lists(tokens, min_size=1, max_size=3)))
        )
        if draw(st.integers(0, 5)) == 0:
            named["not_trainable"] = "its tokens are not exact"
        calls.append(call(seq, prompt, *choices, started_at=float(times[seq]), **named))
    return _Session(calls, _effective(calls))


def _effective(calls: list[Call]) -> dict[float, tuple[int, ...]]:
    """A choice counts when it was the only one, was continued, or all of the last call's were not."""
    effective = {}
    last = last_call(calls)
    for asked in (c for c in calls if why_not(c) is None):
        said = [c for c in asked.choices if c.ids]
        continued = [one for one in said if any(_goes_on(after, asked, one) for after in calls)]
        for one in said:
            if len(said) == 1 or one in continued or (not continued and asked.seq == last):
                for place, logprob in enumerate(one.logprobs):
                    effective[logprob] = tuple(asked.prompt_ids + one.ids[: place + 1])
    return effective


def _goes_on(after: Call, asked: Call, one: Choice) -> bool:
    whole = asked.prompt_ids + one.ids
    return after.prompt_ids[: len(whole)] == whole or (after.parent, after.continues) == (asked.seq, one.index)


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
    seen = {tuple(c.prompt_ids + said.ids) for c in session.calls for said in c.choices}
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
    assert again.left_out == found.left_out


@given(_sessions())
@settings(max_examples=300)
def test_there_are_as_few_sequences_as_can_be(session: _Session) -> None:
    """As many as the most answers of which none can stand behind another (Dilworth's theorem)."""
    answers = [
        (c.prompt_ids, c.prompt_ids + said.ids)
        for c in session.calls
        for said in c.choices
        if any(logprob in session.effective for logprob in said.logprobs)
    ]
    assert len(trajectory(session.calls).sequences) == len(answers) - _matched(answers)


def _matched(answers: list[tuple[array[int], array[int]]]) -> int:
    """The size of the largest matching of answers with one that begins with each: by augmenting paths."""
    follows = [
        [j for j, (prompt, _) in enumerate(answers) if j != i and prompt[: len(whole)] == whole]
        for i, (_, whole) in enumerate(answers)
    ]
    taken: dict[int, int] = {}

    def place(one: int, tried: set[int]) -> bool:
        for other in follows[one]:
            if other not in tried:
                tried.add(other)
                if other not in taken or place(taken[other], tried):
                    taken[other] = one
                    return True
        return False

    return sum(place(one, set()) for one in range(len(answers)))
