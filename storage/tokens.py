"""Token ids and logprobs as the database keeps them: arrays of int32 and float32, little-endian."""

from __future__ import annotations

from array import array

_IDS, _LOGPROBS = "i", "f"


def ids_in(data: bytes) -> array[int]:
    return array(_IDS, data)


def logprobs_in(data: bytes) -> array[float]:
    return array(_LOGPROBS, data)
