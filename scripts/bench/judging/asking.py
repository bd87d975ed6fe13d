"""Every group is put to the judge as the trainer does it: same question, same repair, same faults."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.bench.judging.effects import Scored
from scripts.bench.judging.groups import PlantedGroup
from trainer import ruler
from trainer.errors import JudgeRefused, JudgeSilent
from trainer.judge import Judge
from trainer.question import Terms, question

_ID = re.compile(r"\b[0-9a-f]{8}\b")
"""So that the same fault counts as the same, whatever the ids are."""
_FAULT = 120
"""Characters by which faults are told apart."""


@dataclass(frozen=True, slots=True)
class Answers:
    groups: list[list[Scored]]
    """Those that the judge scored."""
    faults: Counter[str]
    """Why it did not score the others."""
    asked: int
    tokens: int
    """Of all groups, the repairs and what could not be used among them."""


def ask(
    judge: Judge, groups: Sequence[PlantedGroup], terms: Terms, told: Callable[[int], None] = lambda _: None
) -> Answers:
    """Raises `JudgeUnreachable` where nobody gets an answer; ``told`` hears how many groups are done."""
    scored: list[list[Scored]] = []
    faults: Counter[str] = Counter()
    before = judge.tokens
    for number, group in enumerate(groups):
        try:
            scored.append(_ask(judge, group, terms))
        except (JudgeRefused, JudgeSilent) as fault:
            faults[_ID.sub("#", str(fault))[:_FAULT]] += 1
        told(number + 1)
    return Answers(scored, faults, len(groups), judge.tokens - before)


def _ask(judge: Judge, group: PlantedGroup, terms: Terms) -> list[Scored]:
    attempts = [member.attempt for member in group.members]
    scores = ruler.score(judge, attempts, terms, group.seed).scores
    order = question(attempts, terms.instruction, group.seed).order
    places = {member: place / (len(order) - 1) for place, member in enumerate(order)}
    return [
        Scored(score.value, member.quality, places[number], member.padded, member.bribes)
        for number, (member, score) in enumerate(zip(group.members, scores, strict=True))
    ]
