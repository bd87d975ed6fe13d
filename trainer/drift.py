"""Drift: a next prompt that says an answer otherwise than it was sampled, so that a new sequence begins.

Nothing is wrong with what is trained then; but it is trained in more pieces, and the model does not read what it said.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from storage import drifts
from storage.database import Database
from storage.drifts import Drift, Kind
from storage.states import CallOutcome
from storage.text import storable
from storage.types import Call, Choice, SessionKey
from trainer import weights
from trainer.errors import NoWeights
from trainer.settings import TrainerSettings

_AROUND = 24
"""Tokens on each side of the first difference that are shown."""
_FAR = 2048
"""Tokens from the first difference on, and before it, that tell its kind."""
_RETRY_SECONDS = 60.0
"""After which a tokenizer that could not be read is tried again."""
_REASONING_ENDS = re.compile(r"</(think|thinking|reasoning)>|\[/THINK\]|<\|end_of_thought\|>")
_TOOL_CALL = re.compile(r"<tool_call>|<\|?tool_calls?(_begin)?\|>|\[TOOL_CALLS\]|<\|python_tag\|>|<function=")
_SPACE = re.compile(r"\s+")


class Tokenizer(Protocol):
    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens with it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Divergence:
    """Where a call's prompt leaves the tokens that it goes on from."""

    call: Call
    parent: Call
    choice: Choice
    """The parent's, from which the call goes on."""
    at: int
    """The first position at which the prompt is different, or has ended."""

    @property
    def answer(self) -> int:
        """Where the answer begins."""
        return len(self.parent.prompt_ids)

    @property
    def before(self) -> npt.NDArray[np.int32]:
        """The parent's prompt and the answer."""
        return np.frombuffer(self.parent.prompt_ids + self.choice.ids, dtype=np.int32)

    @property
    def prompt(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.call.prompt_ids, dtype=np.int32)


def divergences(calls: Many[Call]) -> tuple[int, list[Divergence]]:
    """How many calls go on from an answer by their messages, and those of them that do not by their tokens.

    An answer that the messages restate in other words is gone on from, too: the client rewrote it.
    """
    by_seq = {call.seq: call for call in calls}
    continued = 0
    found: list[Divergence] = []
    for call in sorted(calls, key=lambda call: (call.started_at, call.seq)):
        parent = by_seq.get(call.parent) if call.parent is not None else None
        if parent is None or not call.prompt_ids or CallOutcome.SUPERSEDED in (call.outcome, parent.outcome):
            continue
        place = 0 if call.restates else call.continues
        answer = next((choice for choice in parent.choices if choice.index == place and choice.ids), None)
        if answer is None or not parent.prompt_ids:
            continue
        continued += 1
        before = np.frombuffer(parent.prompt_ids + answer.ids, dtype=np.int32)
        prompt = np.frombuffer(call.prompt_ids, dtype=np.int32)
        same = min(len(before), len(prompt))
        different = before[:same] != prompt[:same]
        at = int(np.argmax(different)) if different.any() else same
        if at < len(before):
            found.append(Divergence(call, parent, answer, at))
    return continued, found


def kind(one: Divergence, tokenizer: Tokenizer) -> Kind:
    """By the texts behind the first difference, and for tool calls by what of the answer lies before it."""
    rest = tokenizer.decode(one.before[one.at : one.at + _FAR].tolist())
    # As much and more: what was merged or lacks spaces ends earlier or later.
    prompted = tokenizer.decode(one.prompt[one.at : one.at + 2 * _FAR].tolist())
    if _SPACE.sub("", prompted).startswith(_SPACE.sub("", rest)):
        return Kind.BOUNDARY
    if len(_REASONING_ENDS.findall(rest)) > len(_REASONING_ENDS.findall(prompted)):
        return Kind.REASONING
    begun = tokenizer.decode(one.before[max(one.answer, one.at - _FAR) : one.at + 1].tolist())
    # A template that says the whole call otherwise differs from its opening mark on, which may be several tokens.
    if one.at >= one.answer and (_TOOL_CALL.search(begun) or _TOOL_CALL.match(rest.lstrip())):
        return Kind.TOOL_CALL
    return Kind.REWRITTEN


def described(calls: Many[Call], reader: Callable[[], Tokenizer | NoWeights]) -> Drift:
    """The drift of a session's calls; ``reader`` gives the tokenizer, or why there is none, where text is needed."""
    continued, found = divergences(calls)
    if not found:
        return Drift(continued, 0)
    first, tokenizer = found[0], reader()
    if isinstance(tokenizer, NoWeights):
        return Drift(continued, len(found), first.call.id, problem=str(tokenizer))
    shown = slice(max(0, first.at - _AROUND), first.at + _AROUND)
    return Drift(
        continued,
        len(found),
        first.call.id,
        kind(first, tokenizer),
        storable(tokenizer.decode(first.before[shown].tolist())),
        storable(tokenizer.decode(first.prompt[shown].tolist())),
    )


class Drifts:
    """Records the drift of sessions; reads the base model's tokenizer when the first one needs it."""

    def __init__(self, db: Database, settings: TrainerSettings) -> None:
        self._db = db
        self._settings = settings
        self._tokenizer: Tokenizer | NoWeights | None = None
        self._tried = 0.0

    def record(self, session: SessionKey, calls: Many[Call]) -> None:
        drifts.keep(self._db, session, described(calls, self._reader))

    def _reader(self) -> Tokenizer | NoWeights:
        failed = isinstance(self._tokenizer, NoWeights) and time.monotonic() - self._tried > _RETRY_SECONDS
        if self._tokenizer is None or failed:
            self._tried = time.monotonic()
            try:
                self._tokenizer = weights.tokenizer(weights.root(self._settings))
            except NoWeights as error:
                self._tokenizer = error
        return self._tokenizer
