"""What a call's capture says, in numbers that can be compared."""

from __future__ import annotations

import json
import struct
from typing import Any


def unpacked(payload: bytes) -> dict[str, Any]:
    """A capture with its numbers as lists, for tests to look at."""
    head, _, numbers = payload.partition(b"\n")
    document: dict[str, Any] = json.loads(head)
    at = 0

    def numbers_of(code: str, count: int) -> list[Any]:
        nonlocal at
        at += 4 * count
        return list(struct.unpack_from(f"<{count}{code}", numbers, at - 4 * count))

    document["prompts"] = [numbers_of("i", count) for count in document["prompts"]]
    for choice in document["choices"]:
        choice["ids"] = numbers_of("i", choice["ids"])
        choice["logprobs"] = numbers_of("f", choice["logprobs"])
    assert at == len(numbers)
    return document
