"""Bytes stored as their difference to other bytes: common prefix, common suffix, and what lies between.

A conversation of n turns sends its whole history n times. Stored as differences to the call before,
the record costs what is new. A long chain of differences is cut by a whole copy when what it says has doubled, so
that all the copies together cost no more than the differences do.
"""

from __future__ import annotations

import struct

_SHORT_CHAIN = 16

_WHOLE = b"W"
_DELTA = struct.Struct("<cII")


def is_due(depth: int, differences: int, whole: int) -> bool:
    """Whether a chain of ``depth`` differences, of so many bytes together, is cut by a copy of ``whole`` bytes."""
    return depth >= _SHORT_CHAIN and 2 * differences >= whole


def common_prefix(a: bytes, b: bytes) -> int:
    """Length of the longest common prefix, by bisection over C-speed comparisons."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(a: bytes, b: bytes, limit: int) -> int:
    """Length of the longest common suffix of at most ``limit`` bytes."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def encode(data: bytes, base: bytes | None) -> bytes:
    """``data`` as a difference to ``base`` (None: whole), or whole where that is no longer."""
    if base is None:
        return _WHOLE + data
    prefix = common_prefix(data, base)
    suffix = common_suffix(data, base, min(len(data), len(base)) - prefix)
    middle = data[prefix : len(data) - suffix]
    if _DELTA.size + len(middle) >= 1 + len(data):
        return _WHOLE + data
    return _DELTA.pack(b"D", prefix, suffix) + middle


def is_whole(blob: bytes) -> bool:
    return blob[:1] == _WHOLE


def decode(blob: bytes, base: bytes | None) -> bytes:
    """The bytes that `encode` was given. ``base`` must be the same as there.

    Raises ValueError when the blob is a difference and there is no base.
    """
    if is_whole(blob):
        return blob[1:]
    if base is None:
        raise ValueError("a difference cannot be decoded without the bytes that it refers to")
    _, prefix, suffix = _DELTA.unpack_from(blob)
    return base[:prefix] + blob[_DELTA.size :] + (base[len(base) - suffix :] if suffix else b"")
