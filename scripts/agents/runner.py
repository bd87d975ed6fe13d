"""What the demo agents have in common: the command line, a conversation with the model, one JSON line a session.

An agent is a table of scenarios and a ``play`` function that talks through a ``Conversation`` and returns
the reward of what it did. Every call carries the headers ``X-Session-Id`` and ``X-Scenario-Id``, the last one
of a session ``X-Session-End: true``; a server that does not know them ignores them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from openai import APIConnectionError, APIError, AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

_BASE_URL = "http://127.0.0.1:8400/v1"


class BrokenAnswerError(Exception):
    """The server said that all is well, but what it sent holds no answer."""


def spoken(answer: str) -> list[str]:
    """The words of an answer in lower case, without the punctuation around them."""
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", answer.lower())


@dataclass(slots=True)
class Conversation:
    """One session: the messages so far, and the model at the other end."""

    client: AsyncOpenAI
    model: str
    scenario: str
    session: str
    messages: list[ChatCompletionMessageParam] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    version: str | None = None
    """What the header ``x-policy-version`` of the newest answer says; None where the server sends none."""

    async def ask(self, text: str, *, max_tokens: int, last: bool) -> str:
        """Send the history with ``text`` as its newest message; returns the answer, which joins the history as it is.

        Raises ``openai.APIError`` where the server refuses or breaks off, ``BrokenAnswerError`` where it sends
        something else than a chat completion.
        """
        self.messages.append({"role": "user", "content": text})
        headers = {"X-Session-Id": self.session, "X-Scenario-Id": self.scenario}
        if last:
            headers["X-Session-End"] = "true"
        response = await self.client.chat.completions.with_raw_response.create(
            model=self.model,
            messages=self.messages,
            max_tokens=max_tokens,
            temperature=1.0,
            extra_headers=headers,
        )
        completion = response.parse()
        # The SDK hands over whatever came: text for a page of HTML, None for a field that is missing.
        if not isinstance(completion, ChatCompletion) or not completion.choices:
            raise BrokenAnswerError(f"no chat completion came: {response.text[:200]!r}")
        answer = completion.choices[0].message.content or ""
        self.messages.append({"role": "assistant", "content": answer})
        self.answers.append(answer)
        self.version = response.headers.get("x-policy-version")
        return answer


Play = Callable[[Conversation], Awaitable[float]]
"""Plays one session to its end and returns its reward, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A demo agent: what it does in words, its scenarios, and how one session goes."""

    description: str
    scenarios: Iterable[str]
    play: Play


@dataclass(frozen=True, slots=True)
class Outcome:
    """One session's line of output: either ``reward`` or ``error`` is set."""

    scenario: str
    session: str
    turns: int
    version: str | None
    answer: str | None
    reward: float | None = None
    error: str | None = None

    def line(self) -> str:
        """The outcome as one line of JSON."""
        shown: dict[str, object] = {"scenario": self.scenario, "session": self.session}
        shown |= {"reward": self.reward} if self.error is None else {"error": self.error}
        return json.dumps(shown | {"turns": self.turns, "version": self.version, "answer": self.answer})


def run(agent: Agent, arguments: list[str] | None = None) -> int:
    """Read the command line, play the sessions, print their outcomes; returns the exit code.

    0: at least one session was played to its end. 1: all failed. 2: the endpoint cannot be reached.
    """
    options = _options(agent, arguments)
    try:
        return asyncio.run(_play_all(agent, options))
    except APIConnectionError as error:
        cause = error.__cause__ or error
        print(f"cannot reach {options.base_url}: {cause}. Is the server up?", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


async def _play_all(agent: Agent, options: argparse.Namespace) -> int:
    key = os.environ.get("OPENAI_API_KEY") or "none"
    places = asyncio.Semaphore(options.concurrency)
    async with AsyncOpenAI(base_url=options.base_url, api_key=key) as client:
        await _reach(client)

        async def play(scenario: str) -> Outcome:
            async with places:
                outcome = await _session(
                    agent, Conversation(client, options.model, scenario, f"{scenario}-{uuid.uuid4()}")
                )
            print(outcome.line(), flush=True)
            return outcome

        wanted = options.scenario or agent.scenarios
        # Attempt by attempt, so that the attempts of a scenario are spread over the run.
        outcomes = await asyncio.gather(*(play(name) for _ in range(options.attempts) for name in wanted))
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    print(_summary(rewards, len(outcomes)), file=sys.stderr)
    return 0 if rewards else 1


async def _reach(client: AsyncOpenAI) -> None:
    """Raise ``APIConnectionError`` unless something answers; what it answers does not matter here."""
    try:
        await client.with_options(max_retries=0, timeout=10).models.list()
    except APIConnectionError:
        raise
    except APIError:
        return


async def _session(agent: Agent, conversation: Conversation) -> Outcome:
    reward: float | None = None
    error: str | None = None
    try:
        reward = await agent.play(conversation)
    except (APIError, BrokenAnswerError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Outcome(
        scenario=conversation.scenario,
        session=conversation.session,
        turns=len(conversation.answers),
        version=conversation.version,
        answer=conversation.answers[-1] if conversation.answers else None,
        reward=reward,
        error=error,
    )


def _summary(rewards: list[float], sessions: int) -> str:
    failed = sessions - len(rewards)
    mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "no reward"
    return f"{sessions} {'session' if sessions == 1 else 'sessions'}, {mean}" + (f", {failed} failed" if failed else "")


def _options(agent: Agent, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=agent.description)
    parser.add_argument(
        "--base-url",
        type=_url,
        default=os.environ.get("OPENAI_BASE_URL") or _BASE_URL,
        help="the OpenAI-compatible server (default: OPENAI_BASE_URL, else %(default)s)",
    )
    parser.add_argument("--model", default="agent", help="the model's name (default: %(default)s)")
    parser.add_argument("--attempts", type=_count, default=8, help="sessions per scenario (default: %(default)s)")
    parser.add_argument(
        "--scenario",
        action="append",
        choices=list(agent.scenarios),
        metavar="ID",
        help=f"play only this scenario; may be repeated (all: {', '.join(agent.scenarios)})",
    )
    parser.add_argument(
        "--concurrency", type=_count, default=16, help="sessions at the same time (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as {_BASE_URL}")
    return text
