"""The tasks that are learned: the demo's two agents, and its words in another order of worth."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.agents import corridor, words
from scripts.agents.runner import Agent, Conversation

OTHER_WORDS = {"no": 0.5, "maybe": 0.75, "yes": 1.0}
"""What each word is worth in the second word task."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned."""

    name: str
    agent: Agent
    worths: dict[str, float] | None
    """Of the words, where the task is one of words: only these does TRL's trainer play. None: it has several turns."""
    ranked: bool
    """Whether the demo's judge knows it."""

    @property
    def scenarios(self) -> list[str]:
        return list(self.agent.scenarios)


async def _play_other(conversation: Conversation) -> float:
    prompt = words.SCENARIOS[conversation.scenario]
    return words.reward(await conversation.ask(prompt, max_tokens=words.MAX_TOKENS, last=True), OTHER_WORDS)


_OTHER = Agent("Ask for yes, no or maybe, which are worth something else.", words.SCENARIOS, _play_other)

TASKS = {
    task.name: task
    for task in (
        Task("word", words.AGENT, words.WORDS, ranked=True),
        Task("word2", _OTHER, OTHER_WORDS, ranked=False),
        Task("game", corridor.AGENT, None, ranked=True),
    )
}
