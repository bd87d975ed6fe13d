"""What a call's capture says, in numbers that can be compared."""

from __future__ import annotations

from typing import Any

import orjson

from storage import tokens


def unpacked(payload: bytes) -> dict[str, Any]:
    """A capture with its numbers as lists, for tests to look at."""
    document: dict[str, Any] = orjson.loads(payload)
    document["prompts"] = [list(tokens.ids_in(tokens.id_bytes(prompt))) for prompt in document["prompts"]]
    for choice in document["choices"]:
        choice["ids"] = list(tokens.ids_in(tokens.id_bytes(choice["ids"])))
        choice["logprobs"] = list(tokens.logprobs_in(tokens.logprob_bytes(choice["logprobs"])))
    return document
