"""From calls to sequences: what the model saw and said, as one list of tokens wherever the next call continues it.

A call extends the sequence whose tokens its prompt begins with; else it begins a branch of its own. So every sampled
token is trained once, in the very context in which it was sampled, and nothing is ever tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from storage.states import CallOutcome
from storage.types import Call, CallId, Choice
from trainer.batches import Sequence

GREEDY = "greedy: sampled at temperature 0, where nothing is explored"
UNCLEAR = "several answers, none of which a later call continues: which of them had an effect cannot be said"
_RESHAPED = {
    "structured": "a grammar",
    "logit_bias": "a logit bias",
    "logits_processors": "logits processors",
}
"""Sampling under which the engine's logprob is not that of the policy alone."""
_NEUTRAL = {
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,  # until then the end token is masked
}


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All sequences of a session, and the calls of it that are not trained, each with its reason."""

    sequences: tuple[Sequence, ...]
    left_out: dict[CallId, str]
    last_call: int | None
    """`seq` of the last call that was delivered: where the session's transcript ends."""


_COLUMNS = ("ids", "trained", "logprobs", "temperature", "top_p", "top_k")


@dataclass(slots=True, eq=False)
class _Path:
    """A sequence that grows."""

    ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    temperature: list[float] = field(default_factory=list)
    top_p: list[float] = field(default_factory=list)
    top_k: list[int] = field(default_factory=list)
    extended: bool = False
    """A longer sequence begins with this one, and trains its tokens."""

    def extend(self) -> _Path:
        """A sequence that begins with this one. Only the first of several trains what they share."""
        path = _Path()
        for name in _COLUMNS:
            setattr(path, name, list(getattr(self, name)))
        if self.extended:
            path.forget_training()
        self.extended = True
        return path

    def forget_training(self) -> None:
        seen, self.ids = self.ids, []
        self.trained, self.logprobs, self.temperature, self.top_p, self.top_k = [], [], [], [], []
        self.see(seen)

    def see(self, ids: Many[int]) -> None:
        """Tokens that the model was given."""
        n = len(ids)
        self.ids += ids
        self.trained += [False] * n
        self.logprobs += [0.0] * n
        self.temperature += [1.0] * n
        self.top_p += [1.0] * n
        self.top_k += [0] * n

    def say(self, choice: Choice, call: Call) -> None:
        """Tokens that the model sampled."""
        n = len(choice.ids)
        self.ids += choice.ids
        self.trained += [True] * n
        self.logprobs += choice.logprobs
        self.temperature += [call.sampling["temperature"]] * n
        self.top_p += [call.sampling["top_p"]] * n
        self.top_k += [max(0, call.sampling["top_k"])] * n


def trajectory(calls: Many[Call]) -> Trajectory:
    """The sequences of a session's calls, whatever the order in which they are given."""
    ordered = sorted(calls, key=lambda c: (c.started_at, c.seq))
    left_out = {call.id: reason for call in ordered if (reason := why_not(call))}
    usable = [call for call in ordered if call.id not in left_out]
    paths: list[_Path] = []
    for position, call in enumerate(usable):
        before = _continued(paths, call.prompt_ids)
        effective = _effective(call, usable[position + 1 :])
        if not effective:
            left_out[call.id] = UNCLEAR
        for choice in effective:
            path = before.extend() if before is not None else _Path()
            path.see(call.prompt_ids[len(path.ids) :])
            path.say(choice, call)
            paths.append(path)
    sequences = tuple(Sequence(*(getattr(p, name) for name in _COLUMNS)) for p in paths if not p.extended)
    delivered = [call for call in ordered if call.choices and call.outcome is CallOutcome.COMPLETE]
    return Trajectory(sequences, left_out, delivered[-1].seq if delivered else None)


def why_not(call: Call) -> str | None:
    """Why no token of the call can be trained, in words; None when they can."""
    if call.not_trainable:
        return call.not_trainable
    if not call.prompt_ids or not any(choice.ids for choice in call.choices):
        return "nothing was sampled"
    sampling = call.sampling
    if not sampling["temperature"]:
        return GREEDY
    reshaped = [text for name, text in _RESHAPED.items() if sampling.get(name)]
    reshaped += [name for name, neutral in _NEUTRAL.items() if sampling.get(name, neutral) not in (None, neutral)]
    return f"sampled under {', '.join(reshaped)}" if reshaped else None


def _effective(call: Call, later: Many[Call]) -> list[Choice]:
    """The choices that had an effect: the only one, or of several those that a later call continues."""
    choices = [choice for choice in call.choices if choice.ids]
    if len(choices) == 1:
        return choices
    # Of those that none continues, nobody can say which one the session followed; and the judge sees but the first.
    return [c for c in choices if any(_begins(call.prompt_ids + c.ids, after.prompt_ids) for after in later)]


def _continued(paths: list[_Path], prompt: tuple[int, ...]) -> _Path | None:
    """The longest sequence that ``prompt`` begins with; of equals the newest."""
    fitting = [path for path in paths if _begins(path.ids, prompt)]
    return max(reversed(fitting), key=lambda path: len(path.ids), default=None)


def _begins(head: Many[int], ids: Many[int]) -> bool:
    return len(head) <= len(ids) and list(ids[: len(head)]) == list(head)
