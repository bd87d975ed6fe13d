"""An agent that asks one question a session: which word will the model answer?

The model is told to respond with yes, no or maybe. One word alone is what is wanted, and the three are worth
different amounts (the task of ART's own tests). Run it with ``python -m scripts.agents.words``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from scripts.agents.runner import Agent, Conversation, run, spoken

SCENARIOS = {
    "yes-no-maybe-1": "answer yes, no or maybe",
    "yes-no-maybe-2": "Answer yes, no or maybe.",
    "yes-no-maybe-3": "answer with yes, no or maybe",
    "yes-no-maybe-4": "please answer yes, no or maybe",
    "yes-no-maybe-5": "answer yes, maybe or no",
    "yes-no-maybe-6": "Answer with one word: yes, no or maybe?",
}
"""The prompt of each scenario."""

WORDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
"""What each word is worth when it is the whole answer."""

TALKATIVE = 0.1
"""The part of a word's worth that is left when other words follow it."""

MAX_TOKENS = 6


def reward(answer: str, worths: Mapping[str, float] = WORDS) -> float:
    """What an answer is worth, 0 to 1: case, punctuation and white space do not count."""
    said = spoken(answer)
    if not said:
        return 0.0
    worth = worths.get(said[0], 0.0)
    return worth if len(said) == 1 else worth * TALKATIVE


async def play(conversation: Conversation) -> float:
    """One session: one question, one answer."""
    prompt = SCENARIOS[conversation.scenario]
    return reward(await conversation.ask(prompt, max_tokens=MAX_TOKENS, last=True))


AGENT = Agent("Ask a model to respond with yes, no or maybe.", SCENARIOS, play)

if __name__ == "__main__":
    sys.exit(run(AGENT))
