"""RULER: an LLM judge scores the members of a group against each other (openpipe.ai, "RULER").

Every attempt has an id that the scores must name: exactly once each, between 0 and 1, with an explanation. An answer
that breaks this is asked for once more, with the fault named; then the group is skipped rather than scored by guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.cutting import Cut
from trainer.errors import JudgeRefused, JudgeTooLong
from trainer.judge import Judge, Reply
from trainer.question import Attempt, Question, Terms, question


@dataclass(frozen=True, slots=True)
class Score:
    value: float
    explanation: str


@dataclass(frozen=True, slots=True)
class Scores:
    """One score for each attempt, in the order in which they were given."""

    scores: tuple[Score, ...]
    cut: Cut | None = None
    """What the judge was not shown."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    trajectory_id: str
    explanation: str = Field(min_length=1)
    score: float = Field(ge=0, le=1, allow_inf_nan=False)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scores: list[_Entry]


SCHEMA = _Answer.model_json_schema()

_SHORTER = 2
"""How often a question that is too long for the judge is asked again, cut further,"""
_SHARE = 0.7
"""each time to so much of what it was."""


def score(judge: Judge, attempts: Sequence[Attempt], terms: Terms, seed: int) -> Scores:
    """Have the judge compare ``attempts``; equal ones are shown once and scored alike.

    ``seed``: of their order and ids. Raises `JudgeUnreachable`, `JudgeSilent` (both: try later) or `JudgeRefused`
    (this group cannot be scored).
    """
    distinct = {attempt.content: attempt for attempt in attempts}
    asked, reply = _ask(judge, list(distinct.values()), terms, seed)
    try:
        found = read_answer(reply.content, asked.ids)
    except JudgeRefused as fault:
        again = {"role": "user", "content": f"That answer cannot be used: {fault}. Answer again, with JSON alone."}
        said = [{"role": "assistant", "content": reply.content}] if reply.content else []
        reply = judge.ask([*asked.messages, *said, again], SCHEMA)
        found = read_answer(reply.content, asked.ids)
    by_content = dict(zip(distinct, found, strict=True))
    return Scores(tuple(by_content[attempt.content] for attempt in attempts), asked.cut)


def _ask(judge: Judge, attempts: Sequence[Attempt], terms: Terms, seed: int) -> tuple[Question, Reply]:
    """Ask; where the judge counts more tokens than we do and says that they are too many, ask with fewer."""
    asked = question(attempts, terms.instruction, seed, terms.limit)
    for _ in range(_SHORTER):
        try:
            return asked, judge.ask(asked.messages, SCHEMA)
        except JudgeTooLong as too_long:
            try:
                asked = question(attempts, terms.instruction, seed, int(asked.tokens * _SHARE))
            except JudgeRefused:
                raise too_long from None
    return asked, judge.ask(asked.messages, SCHEMA)


def read_answer(content: str, ids: Sequence[str]) -> list[Score]:
    """The scores in the judge's answer, in the order of ``ids``. Raises `JudgeRefused` with the fault in words."""
    if not content:
        raise JudgeRefused("it is empty")
    start, end = content.find("{"), content.rfind("}")
    if start < 0 or end < start:
        raise JudgeRefused(f"there is no JSON in it: {content[:200]!r}")
    try:
        answer = _Answer.model_validate_json(content[start : end + 1])
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the document"
        raise JudgeRefused(f"{where}: {problem['msg']}") from error
    given = [entry.trajectory_id for entry in answer.scores]
    if sorted(given) != sorted(ids):
        raise JudgeRefused(f"it scores {', '.join(given) or 'nothing'}; it must score {', '.join(ids)}, each once")
    entries = {entry.trajectory_id: entry for entry in answer.scores}
    return [Score(entries[name].score, entries[name].explanation) for name in ids]
