"""Token ids and logprobs as a capture carries them, and as the database keeps them.

Both are arrays of int32 (ids) and float32 (logprobs), little-endian. In a capture, which is JSON, they stand as base64;
captures of version 1 have lists of numbers, and an older journal may hold some.
"""

from __future__ import annotations

import binascii
from array import array
from collections.abc import Sequence
from typing import Any

_IDS, _LOGPROBS = "i", "f"
Packed = str | list[Any]
"""How a capture holds numbers."""


def id_bytes(given: Packed) -> bytes:
    """The ids, as the database keeps them. Raises ValueError, TypeError, OverflowError for what are none."""
    return _bytes(_IDS, given)


def logprob_bytes(given: Packed) -> bytes:
    return _bytes(_LOGPROBS, given)


def pack_ids(ids: Sequence[int]) -> str:
    return binascii.b2a_base64(array(_IDS, ids).tobytes(), newline=False).decode()


def pack_logprobs(logprobs: Sequence[float]) -> str:
    return binascii.b2a_base64(array(_LOGPROBS, logprobs).tobytes(), newline=False).decode()


def ids_in(data: bytes) -> tuple[int, ...]:
    return tuple(array(_IDS, data))


def logprobs_in(data: bytes) -> tuple[float, ...]:
    return tuple(array(_LOGPROBS, data))


def _bytes(code: str, given: Packed) -> bytes:
    if isinstance(given, str):
        return array(code, binascii.a2b_base64(given)).tobytes()
    return array(code, given).tobytes()
