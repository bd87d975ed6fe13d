"""Token ids and logprobs as the database keeps them: arrays of int32 and float32, little-endian."""

from __future__ import annotations

from array import array

_IDS, _LOGPROBS = "i", "f"


def ids_in(data: bytes) -> tuple[int, ...]:
    return tuple(array(_IDS, data))


def logprobs_in(data: bytes) -> tuple[float, ...]:
    return tuple(array(_LOGPROBS, data))
