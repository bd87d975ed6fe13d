"""Bytes stored as their difference to other bytes: common prefix, common suffix, and what lies between.

A conversation of n turns sends its whole history n times. Stored as differences to the call before,
the record costs what is new. A long chain of differences is cut by a whole copy when what it says has doubled, so
that all the copies together cost no more than the differences do.

What is new in a call stands beside its bytes as readable text, and the frames of a stream are all alike: so what is
left is deflated, with that text as the dictionary, and costs little more than how the bytes differ from the text.
"""

from __future__ import annotations

import struct
import zlib

_SHORT_CHAIN = 64

_WHOLE, _DEFLATED = b"W", b"Z"
_DELTA = struct.Struct("<cII")
_WORTH_DEFLATING = 64
_LEVEL, _RAW, _MEMORY = 1, -15, 8
"""zlib's fastest, without its header. A larger memory level costs ten times as much time on small bodies."""
_WINDOW = 32 * 1024
"""How much of a dictionary zlib looks at: the end of it."""


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


def encode(data: bytes, base: bytes | None, text: bytes | None = None) -> bytes:
    """``data`` as a difference to ``base`` (None: whole), or whole where that is no longer.

    With ``text`` what is left is deflated; much of it should stand in there.
    """
    if base is not None:
        prefix = common_prefix(data, base)
        suffix = common_suffix(data, base, min(len(data), len(base)) - prefix)
        middle = data[prefix : len(data) - suffix]
        if _DELTA.size + len(middle) < 1 + len(data):
            deflated = _deflate(middle, text)
            tag, middle = (b"D", middle) if deflated is None else (b"E", deflated)
            return _DELTA.pack(tag, prefix, suffix) + middle
    deflated = _deflate(data, text)
    return _WHOLE + data if deflated is None else _DEFLATED + deflated


def is_whole(blob: bytes) -> bool:
    return blob[:1] in (_WHOLE, _DEFLATED)


def decode(blob: bytes, base: bytes | None, text: bytes | None = None) -> bytes:
    """The bytes that `encode` was given. ``base`` and ``text`` must be the same as there.

    Raises ValueError when the blob is a difference and there is no base.
    """
    if is_whole(blob):
        return _inflate(blob[1:], text) if blob[:1] == _DEFLATED else blob[1:]
    if base is None:
        raise ValueError("a difference cannot be decoded without the bytes that it refers to")
    tag, prefix, suffix = _DELTA.unpack_from(blob)
    middle = blob[_DELTA.size :] if tag == b"D" else _inflate(blob[_DELTA.size :], text)
    return base[:prefix] + middle + (base[len(base) - suffix :] if suffix else b"")


def _deflate(data: bytes, text: bytes | None) -> bytes | None:
    """None where it is not worth it."""
    if text is None or len(data) < _WORTH_DEFLATING:
        return None
    squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, _MEMORY, zdict=text[-_WINDOW:])
    deflated = squeeze.compress(data) + squeeze.flush()
    return deflated if len(deflated) < len(data) else None


def _inflate(data: bytes, text: bytes | None) -> bytes:
    expand = zlib.decompressobj(_RAW, zdict=(text or b"")[-_WINDOW:])
    return expand.decompress(data) + expand.flush()
