"""A round of sessions: the agents of the demo, which give their true reward themselves where no judge is to."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass

import httpx
from openai import APIError, AsyncOpenAI

from scripts.agents.runner import Agent, BrokenAnswerError, Conversation

ATTEMPTS = 8
"""Sessions of a scenario in a round: a group of the product's default size."""
OLDER = 2
"""Of these as many are answered by an older version, where one is given."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Table:
    """Where is played, and by which rules."""

    url: str
    """The proxy's, without ``/v1``."""
    agent: Agent
    rewarding: bool
    """Whether the agents give their true reward."""


@dataclass(frozen=True, slots=True)
class Played:
    """A session that came to its end."""

    scenario: str
    version: str
    """That answered: ``policy@7``."""
    reward: float
    """The true one."""


def named(live: str, lag: int) -> str:
    """The version ``lag`` behind ``live`` (``policy@7``); the first versions have none so old: ``@0`` then."""
    policy, _, number = live.rpartition("@")
    return f"{policy}@{max(int(number) - lag, 0)}"


def play(table: Table, model: str, older: str | None = None) -> list[Played | None]:
    """Each session as it was played; None for one that failed. `OLDER` of each scenario ask for ``older``, if any."""
    return asyncio.run(_play(table, model, older or model))


async def _play(table: Table, model: str, older: str) -> list[Played | None]:
    places = asyncio.Semaphore(_AT_ONCE)
    async with (
        AsyncOpenAI(base_url=f"{table.url}/v1", api_key="none") as client,
        httpx.AsyncClient(base_url=table.url, timeout=60) as rewards,
    ):

        async def session(number: int, scenario: str) -> Played | None:
            async with places:
                name = older if number < OLDER else model
                conversation = Conversation(client, name, scenario, f"{scenario}-{uuid.uuid4()}")
                try:
                    reward = await table.agent.play(conversation)
                except (APIError, BrokenAnswerError):
                    return None
                if table.rewarding:
                    path = f"/v1/sessions/{conversation.session}/reward"
                    (await rewards.post(path, json={"value": reward})).raise_for_status()
                assert conversation.version is not None, "the proxy names the version in every answer"
                return Played(scenario, conversation.version, reward)

        wanted = [session(number, scenario) for number in range(ATTEMPTS) for scenario in table.agent.scenarios]
        return list(await asyncio.gather(*wanted))
