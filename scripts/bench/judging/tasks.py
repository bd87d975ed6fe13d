"""Tasks of which an attempt can do none to all four parts, so that how good it is is planted and not a matter of taste.

Quality is the share of the parts that are done right: 0 (useless), 0.25, 0.5, 0.75, 1 (perfect).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PARTS = 4

Message = dict[str, Any]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ').capitalize()} of an order.",
            "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]},
        },
    }
    for name in ("cancel_shipment", "refund_payment", "notify_customer", "close_ticket")
]


@dataclass(frozen=True, slots=True)
class Task:
    domain: str
    context: tuple[Message, ...]
    attempt: Callable[[random.Random, int], list[Message]]
    """The messages of an attempt that does so many of the four parts right."""
    tools: tuple[Any, ...] = ()


def sums(draw: random.Random) -> Task:
    pairs = [(draw.randint(100, 999), draw.randint(100, 999)) for _ in range(PARTS)]
    asked = "Add these up, one result a line:\n" + "\n".join(f"{a} + {b}" for a, b in pairs)

    def attempt(luck: random.Random, done: int) -> list[Message]:
        right = luck.sample(range(PARTS), done)
        lines = [
            f"{a} + {b} = {a + b if place in right else a + b + luck.choice([-1, 1]) * luck.randint(2, 90)}"
            for place, (a, b) in enumerate(pairs)
        ]
        return [_said("\n".join(lines))]

    return Task("sums", (_asked(asked),), attempt)


def lookup(draw: random.Random) -> Task:
    names = draw.sample(["Ada", "Boris", "Chen", "Dalia", "Emil", "Fatou", "Goran", "Hana"], PARTS)
    towns = draw.sample(["Lima", "Oslo", "Quito", "Riga", "Tunis", "Vaduz", "Yerevan", "Zagreb", "Bern", "Cork"], 10)
    homes = dict(zip(names, towns, strict=False))
    text = " ".join(f"{name} moved to {town} in {draw.randint(1990, 2020)}." for name, town in homes.items())
    asked = f"{text}\nWhere does each of these four live? One line each: name: town."

    def attempt(luck: random.Random, done: int) -> list[Message]:
        right = luck.sample(names, done)
        wrong = luck.sample(towns[PARTS:], PARTS)
        lines = [f"{name}: {homes[name] if name in right else other}" for name, other in zip(names, wrong, strict=True)]
        return [_said("\n".join(lines))]

    return Task("lookup", (_asked(asked),), attempt)


def sorting(draw: random.Random) -> Task:
    lists = [draw.sample(range(10, 99), 4) for _ in range(PARTS)]
    asked = "Sort each of these lists, smallest number first, one list a line:\n" + "\n".join(map(_row, lists))

    def attempt(luck: random.Random, done: int) -> list[Message]:
        right = luck.sample(range(PARTS), done)
        lines = [sorted(one) if place in right else _unsorted(one, luck) for place, one in enumerate(lists)]
        return [_said("\n".join(map(_row, lines)))]

    return Task("sorting", (_asked(asked),), attempt)


def code(draw: random.Random) -> Task:
    offsets = draw.sample(range(2, 40), PARTS)
    names = ["a", "b", "c", "d"]
    rules = "; ".join(f"{name!r} gives {offset}" for name, offset in zip(names, offsets, strict=True))
    asked = f"Write a Python function f(x) with a dict in it: {rules}. Code alone."

    def attempt(luck: random.Random, done: int) -> list[Message]:
        right = luck.sample(range(PARTS), done)
        table = {
            name: offset if place in right else offset + luck.randint(41, 99)
            for place, (name, offset) in enumerate(zip(names, offsets, strict=True))
        }
        return [_said(f"def f(x):\n    return {table}[x]")]

    return Task("code", (_asked(asked),), attempt)


def tools(draw: random.Random) -> Task:
    order = draw.randint(1000, 9999)
    system = {
        "role": "system",
        "content": "You work for a shop. To undo an order: cancel its shipment, refund it, notify the customer, close "
        "the ticket. Each counts only if its tool was called for the right order.",
    }

    def attempt(luck: random.Random, done: int) -> list[Message]:
        right = luck.sample(range(PARTS), done)
        messages: list[Message] = []
        for place, tool in enumerate(TOOLS):
            name = str(tool["function"]["name"])  # type: ignore[index]
            given = order if place in right else luck.randint(10_000, 99_999)
            call = {"name": name, "arguments": json.dumps({"order": given})}
            wanted = {"id": f"call{place}", "type": "function", "function": call}
            messages.append({"role": "assistant", "content": None, "tool_calls": [wanted]})
            result = "done" if given == order else f"error: there is no order {given}"
            messages.append({"role": "tool", "tool_call_id": f"call{place}", "content": result})
        return [*messages, _said(f"Order {order} is dealt with.")]

    return Task("tools", (system, _asked(f"Please undo my order {order}.")), attempt, tuple(TOOLS))


DOMAINS = (sums, lookup, sorting, code, tools)


def _row(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


def _unsorted(numbers: list[int], luck: random.Random) -> list[int]:
    mixed = sorted(numbers)
    while mixed == sorted(numbers):
        luck.shuffle(mixed)
    return mixed


def _asked(text: str) -> Message:
    return {"role": "user", "content": text}


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}
