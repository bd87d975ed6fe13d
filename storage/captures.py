"""Captures: what the plugin saw of a call, as it travels and as the journal keeps it (docs/architecture.md, "Capture").

A line of JSON and behind it the numbers that it counts, as the database keeps them: of each prompt its ids (int32),
then of each choice its ids and its logprobs (float32), little-endian. Older journals hold JSON alone, with the numbers
as base64 (version 2) or as lists (version 1).
"""

from __future__ import annotations

import binascii
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

_VERSION = 3
_IDS, _LOGPROBS = "i", "f"
_ITEM_BYTES = 4


class CapturedChoice(NamedTuple):
    number: int
    finish: str | None
    ids: bytes
    """int32."""
    logprobs: bytes
    """float32."""


@dataclass(frozen=True, slots=True)
class Capture:
    reason: str | None
    """Why the call cannot be trained on, where the capture shows it."""
    prompt_ids: bytes = b""
    choices: tuple[CapturedChoice, ...] = ()
    sampling: dict[str, Any] | None = None


def pack(
    reason: str | None, prompts: Sequence[Sequence[int]], choices: Sequence[dict[str, Any]], sampling: dict[str, Any]
) -> bytes:
    """A capture's bytes. A choice is what its JSON holds, with its ``ids`` and ``logprobs`` as lists."""
    arrays = [array(_IDS, prompt) for prompt in prompts]
    for choice in choices:
        arrays += array(_IDS, choice["ids"]), array(_LOGPROBS, choice["logprobs"])
    head = {
        "v": _VERSION,
        "reason": reason,
        "prompts": list(map(len, prompts)),
        "choices": [c | {"ids": len(c["ids"]), "logprobs": len(c["logprobs"])} for c in choices],
        "sampling": sampling,
    }
    return b"".join((orjson.dumps(head), b"\n", *arrays))


def read(payload: bytes | None) -> Capture:
    """Raises ValueError, TypeError, LookupError or OverflowError for what is no capture."""
    if payload is None:
        return Capture("no tokens were captured")
    head, _, arrays = payload.partition(b"\n")
    data = orjson.loads(head)
    numbers = _Numbers(arrays)
    prompts = [numbers.next(_IDS, given) for given in data["prompts"]]
    choices = tuple(
        CapturedChoice(c["index"], c["finish"], numbers.next(_IDS, c["ids"]), numbers.next(_LOGPROBS, c["logprobs"]))
        for c in data["choices"]
    )
    numbers.end()
    reason = data["reason"]
    if reason is None and len(prompts) != 1:
        reason = f"{len(prompts)} prompts in one call"
    if reason is None and any(len(c.ids) != len(c.logprobs) for c in choices):
        reason = "the numbers of sampled tokens and of logprobs differ"
    return Capture(reason, prompts[0] if prompts else b"", choices, data["sampling"])


class _Numbers:
    """The arrays of a capture, in order."""

    def __init__(self, arrays: bytes) -> None:
        self._arrays = arrays
        self._at = 0

    def next(self, code: str, given: int | str | list[Any]) -> bytes:
        """The next array: its length is ``given``, or in older captures it itself."""
        if isinstance(given, int):
            begin = self._at
            self._at += given * _ITEM_BYTES
            return self._arrays[begin : self._at]
        return array(code, binascii.a2b_base64(given) if isinstance(given, str) else given).tobytes()

    def end(self) -> None:
        if self._at != len(self._arrays):
            raise ValueError(f"a capture counts {self._at} bytes of numbers, and {len(self._arrays)} came")
