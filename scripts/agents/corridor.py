"""An agent that walks a corridor of three bends: at each a guide calls the way, and the model says where to go.

A session takes one turn a bend, and each answer goes back into the history as the model gave it; what the agent
says next depends on it. Run it with ``python -m scripts.agents.corridor``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.agents.runner import Agent, Conversation, run, spoken


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a corridor begins, and the right way at each of its bends."""

    place: str
    ways: tuple[str, ...]


SCENARIOS = {
    "corridor-1": Walk("cellar", ("up", "left", "down")),
    "corridor-2": Walk("castle", ("down", "right", "up")),
    "corridor-3": Walk("mine", ("up", "right", "left")),
    "corridor-4": Walk("temple", ("down", "left", "right")),
    "corridor-5": Walk("tower", ("down", "up", "left")),
    "corridor-6": Walk("garden", ("up", "down", "right")),
}

CHOICES = {"up": "up or down", "down": "up or down", "left": "left or right", "right": "left or right"}
"""Per way, the choice that the agent offers where it is the right one."""

TALKATIVE = 0.5
"""What a right step is worth when other words follow it."""

ASTRAY = 0.1
"""What a wrong way is worth: it is at least a way."""

MAX_TOKENS = 6


def rules(walk: Walk) -> str:
    """The system message of a session; no two scenarios have the same."""
    return f"You answer with one word. You are in a {walk.place}."


def question(walk: Walk, turn: int, before: str | None) -> str:
    """The agent's message at bend ``turn`` (from 0) after the model's answer ``before`` at the bend before it."""
    way = walk.ways[turn]
    call = f"{way.capitalize()}! Answer with one word: {CHOICES[way]}?"
    gained = 0.0 if before is None else step(before, walk.ways[turn - 1])
    if gained == 0.0:
        return call
    return f"Good. {call}" if gained > ASTRAY else f"A wall. {call}"


def step(answer: str, way: str) -> float:
    """What one answer is worth where ``way`` is right, 0 to 1: case and punctuation do not count."""
    said = spoken(answer)
    if not said or said[0] not in CHOICES:
        return 0.0
    if said[0] != way:
        return ASTRAY
    return 1.0 if len(said) == 1 else TALKATIVE


def reward(answers: Sequence[str], scenario: str) -> float:
    """What a session's answers are worth, 0 to 1: the mean over all bends; one that was not reached counts 0."""
    ways = SCENARIOS[scenario].ways
    return sum(step(answer, way) for answer, way in zip(answers, ways, strict=False)) / len(ways)


async def play(conversation: Conversation) -> float:
    """One session: one turn a bend."""
    walk = SCENARIOS[conversation.scenario]
    conversation.messages.append({"role": "system", "content": rules(walk)})
    answer: str | None = None
    for turn in range(len(walk.ways)):
        last = turn == len(walk.ways) - 1
        answer = await conversation.ask(question(walk, turn, answer), max_tokens=MAX_TOKENS, last=last)
    return reward(conversation.answers, conversation.scenario)


AGENT = Agent("Walk a corridor: at each bend a model says which way to go.", SCENARIOS, play)

if __name__ == "__main__":
    sys.exit(run(AGENT))
