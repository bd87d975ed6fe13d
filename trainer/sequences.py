"""From calls to sequences: what the model saw and said, as one list of tokens wherever the next call continues it.

An answer stands behind the one whose tokens its prompt begins with, and each answer ends one sequence or is followed by
one other: so every sampled token is trained once, in the very context in which it was sampled, and nothing is ever
tokenised again. It is the tokens alone that decide; in which order the calls came does not matter.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from storage.samplings import why_recomputed
from storage.states import CallOutcome
from storage.types import Call, CallId, Choice, VersionNumber
from trainer.batches import Sequence, Source

UNUSED = "several answers, none of which a later call continues: they had no effect"
CUT_OFF = "the context or a limit of the server ended the answer, not the client's own limit"
NO_LOGPROBS = "not every sampled token has a logprob that is a finite number of at most 0"
NO_IDS = "a token id is negative"
_ROUNDING = 1e-3
"""By which a logprob may lie above 0."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All sequences of a session, and what of it is not trained."""

    sequences: tuple[Sequence, ...]
    """As few as can be."""
    left_out: dict[CallId, str]
    """The calls of which no token is trained, each with its reason."""

    @property
    def nothing(self) -> str:
        """Why there are no sequences, in words."""
        return f"nothing to train on: {'; '.join(dict.fromkeys(self.left_out.values())) or 'it has no calls'}"


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """A choice that had an effect, behind the prompt of its call."""

    call: Call
    choice: Choice
    digest: bytes
    """Of prompt and choice."""

    @property
    def source(self) -> Source:
        return self.call.id, self.choice.index

    @property
    def begin(self) -> int:
        return len(self.call.prompt_ids)

    @property
    def end(self) -> int:
        return self.begin + len(self.choice.ids)


def trajectory(
    calls: Many[Call], agents: Collection[str] = (), lost: Mapping[VersionNumber, str] = MappingProxyType({})
) -> Trajectory:
    """The sequences of a session's calls, in whatever order they are given; the rest as for `why_not`."""
    ordered = sorted(calls, key=_when)
    left_out = {call.id: reason for call in ordered if (reason := why_not(call, agents, lost))}
    delivered = _delivered(ordered)
    answers = {c.seq: [_Answer(c, a, _digest(c.prompt_ids, a.ids)) for a in c.choices if a.ids] for c in delivered}
    ends = sorted({answer.end for said in answers.values() for answer in said})
    beginnings = {call.seq: _beginnings(call.prompt_ids, ends) for call in ordered}
    effects = _Effects(ordered, beginnings.values(), last_call(calls))
    trained: list[_Answer] = []
    for call in (c for c in delivered if c.id not in left_out):
        effective = effects.of(call, answers[call.seq])
        whole = [answer for answer in effective if not is_cut_off(call, answer.choice)]
        if not whole:
            left_out[call.id] = CUT_OFF if effective else UNUSED
        trained += whole
    sequences = tuple(replace(_sequence(chain), source=chain[-1].source) for chain in _chains(trained, beginnings))
    return Trajectory(sequences, left_out)


def last_call(calls: Iterable[Call]) -> int | None:
    """`seq` of the last call that was delivered: where the session's transcript ends; None where none was."""
    delivered = _delivered(calls)
    return max(delivered, key=_when).seq if delivered else None


def _delivered(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.choices and call.outcome is CallOutcome.COMPLETE]


def _when(call: Call) -> tuple[float, int]:
    return call.started_at, call.seq


def recomputed_under(calls: Iterable[Call]) -> set[VersionNumber]:
    """The versions under which the trainer itself computes what their tokens' logprobs were."""
    return {c.version for c in calls if not c.not_trainable and c.sampling and why_recomputed(c.sampling)}


def why_not(
    call: Call, agents: Collection[str] = (), lost: Mapping[VersionNumber, str] = MappingProxyType({})
) -> str | None:
    """Why no token of the call can be trained, in words; None when they can.

    Args:
        agents: names of the agents (`X-Agent`) that are trained; empty: all.
        lost: versions under which nothing can be computed, each with the reason.
    """
    if call.not_trainable:
        return call.not_trainable
    if not call.prompt_ids or not any(choice.ids for choice in call.choices):
        return "nothing was sampled"
    if agents and call.agent not in agents:
        who = f"agent {call.agent!r}" if call.agent is not None else "a call that names no agent"
        return f"{who} is not among those that are trained (train.agents)"
    if recomputed := why_recomputed(call.sampling):
        if call.version in lost:
            return f"{recomputed}, and its logprobs cannot be computed again: {lost[call.version]}"
    elif not all(len(c.ids) == len(c.logprobs) and _are_logprobs(c.logprobs) for c in call.choices):
        return NO_LOGPROBS
    if any(_ids(ids).min(initial=0) < 0 for ids in (call.prompt_ids, *(choice.ids for choice in call.choices))):
        return NO_IDS
    return None


def is_cut_off(call: Call, choice: Choice) -> bool:
    """Whether the context, or a limit that the client did not set, ended an answer before its end.

    Where the client's limit was not kept (older calls) it is taken for what ended the answer.
    """
    if choice.finish != "length" or call.token_limit is None:
        return False
    return call.token_limit == 0 or len(choice.ids) < call.token_limit


class _Effects:
    """Which of a call's answers had an effect."""

    def __init__(self, calls: Many[Call], beginnings: Iterable[dict[int, bytes]], last: int | None) -> None:
        self._last = last
        self._begun = {place for found in beginnings for place in found.items()}
        """Of all prompts: lengths and digests of what they begin with."""
        self._named: defaultdict[int, set[int]] = defaultdict(set)
        """By call, the choices that another call's messages go on from, though its prompt may say it otherwise."""
        for call in calls:
            if call.parent is not None and call.continues is not None:
                self._named[call.parent].add(call.continues)

    def of(self, call: Call, answers: Many[_Answer]) -> list[_Answer]:
        """The only one; of several those that a call continues; at the end of the session, where none does, all."""
        if len(answers) == 1:
            return list(answers)
        continued = [
            answer
            for answer in answers
            if (answer.end, answer.digest) in self._begun or answer.choice.index in self._named[call.seq]
        ]
        return continued or (list(answers) if call.seq == self._last else [])


def _chains(answers: Many[_Answer], beginnings: dict[int, dict[int, bytes]]) -> list[list[_Answer]]:
    """The fewest chains in which each prompt begins with the answer before, and all that came before that.

    An answer goes behind the longest one that nothing stands behind yet. That is the fewest: whatever begins with the
    longest begins with the shorter ones, too, so that these are left for others.
    """
    chains: list[list[_Answer]] = []
    open_ends: defaultdict[tuple[int, bytes], list[list[_Answer]]] = defaultdict(list)
    # What begins with an answer is longer than its prompt.
    for answer in sorted(answers, key=lambda a: (a.begin, *_when(a.call), a.choice.index)):
        places = reversed(beginnings[answer.call.seq].items())
        chain = next((open_ends[place].pop() for place in places if open_ends.get(place)), None)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(answer)
        open_ends[answer.end, answer.digest].append(chain)
    return chains


def _sequence(chain: Many[_Answer]) -> Sequence:
    last = chain[-1]
    ids = np.concatenate([_ids(last.call.prompt_ids), _ids(last.choice.ids)])
    length = len(ids)
    trained = np.zeros(length, dtype=np.bool_)
    logprobs = np.zeros(length, dtype=np.float32)
    temperature, top_p = np.ones(length, dtype=np.float32), np.ones(length, dtype=np.float32)
    top_k, version = np.zeros(length, dtype=np.int32), np.zeros(length, dtype=np.int32)
    recomputed = np.zeros(length, dtype=np.bool_)
    for answer in chain:
        said, sampling = slice(answer.begin, answer.end), answer.call.sampling
        trained[said] = True
        if why_recomputed(sampling):
            recomputed[said] = True
        else:
            logprobs[said] = np.frombuffer(answer.choice.logprobs, dtype=np.float32)
        # Greedy, and what the server does not tell: the policy's own distribution.
        temperature[said], top_p[said] = sampling["temperature"] or 1, sampling["top_p"] or 1
        top_k[said] = max(0, sampling["top_k"] or 0)
        version[said] = answer.call.version
    return Sequence(ids, trained, logprobs, temperature, top_p, top_k, version, recomputed)


def _beginnings(ids: array[int], lengths: Many[int]) -> dict[int, bytes]:
    """The digests of the beginnings of ``ids`` that have one of the ``lengths`` (which rise), by length."""
    found: dict[int, bytes] = {}
    data, hasher, at = memoryview(ids), hashlib.blake2b(digest_size=16), 0
    for length in lengths:
        if length > len(ids):
            break
        hasher.update(data[at:length])
        found[length] = hasher.digest()
        at = length
    return found


def _digest(*ids: array[int]) -> bytes:
    hasher = hashlib.blake2b(digest_size=16)
    for part in ids:
        hasher.update(part)
    return hasher.digest()


def _ids(ids: array[int]) -> npt.NDArray[np.int32]:
    return np.frombuffer(ids, dtype=np.int32)


def _are_logprobs(values: array[float]) -> bool:
    numbers = np.frombuffer(values, dtype=np.float32)
    return bool((np.isfinite(numbers) & (numbers <= _ROUNDING)).all())
