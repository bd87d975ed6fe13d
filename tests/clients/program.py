"""What the clients' programs share: the runs that they are asked for, the tools, the conversation.

A program is an agent as people write them. It knows a base URL, a model's name and headers to send, nothing else. It
reads runs from its input, one JSON object a line, and writes for each what its library gave it, as JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Run:
    """One scene, played with these settings."""

    scene: str
    base_url: str
    model: str
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every call."""
    last: dict[str, str] = field(default_factory=dict)
    """Sent with the last call, too."""
    metadata: dict[str, str] = field(default_factory=dict)
    """The body's, in every call."""
    topic: str = ""
    """Opens the conversation, so that no two of them are alike."""


Scene = Callable[[Run], Any]
"""Plays a run and gives its transcript; a coroutine function where the library is asynchronous."""


def play(scenes: Mapping[str, Scene]) -> None:
    """Play the runs that are asked for. A run that raises has the traceback as its transcript."""
    answers, sys.stdout = sys.stdout, sys.stderr  # some libraries print
    for line in sys.stdin:
        run = Run(**json.loads(line))
        try:
            found = scenes[run.scene](run)
            answer = {"transcript": asyncio.run(found) if inspect.iscoroutine(found) else found}
        except Exception:  # noqa: BLE001  # the edge of the process: the test shows it
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer, default=str), file=answers, flush=True)


CALLS = 5
"""How many calls of the model `questions` lead to."""


def questions(run: Run) -> tuple[str, str]:
    """A conversation's user messages. They order what the model answers (see tests/fake_vllm/orders.py): two calls of
    tools at once, and a text; then a call whose result orders a second one, and a text."""
    paris, oslo = '[[call weather {"city": "Paris"}]]', '[[call weather {"city": "Oslo"}]]'
    return (
        f"{run.topic}: what is the weather in Paris and in Oslo? {paris}{oslo}",
        'And in Oslo tomorrow? [[call forecast {"city": "Oslo", "days": 1}]]',
    )


def weather(city: str) -> str:
    """The weather in a city, now."""
    return f"{len(city)} °C in {city}"


def forecast(city: str, days: int) -> str:
    """The weather in a city, some days from now."""
    return f'rain in {city} in {days} days; and now: [[call weather {{"city": "{city}"}}]]'


def use(name: str, arguments: dict[str, Any]) -> str:
    """The result of a tool."""
    tools: dict[str, Callable[..., str]] = {"weather": weather, "forecast": forecast}
    return tools[name](**arguments)


_CITY = {"city": {"type": "string"}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {"type": "object", "properties": _CITY, "required": ["city"]},
    "forecast": {
        "type": "object",
        "properties": {**_CITY, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
"""The tools' parameters."""
