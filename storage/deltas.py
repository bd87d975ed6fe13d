"""Bytes stored as their difference to other bytes: common prefix, common suffix, and what lies between.

A conversation of n turns sends its whole history n times. Stored as differences to the call before,
the record costs what is new. A long chain of differences is cut by a whole copy when what it says has doubled, so
that all the copies together cost no more than the differences do.

What is new in a call stands beside its bytes as readable text, and the frames of a stream are all alike: so of what
is left, a long run that stands in that text is not written again, and the rest is deflated with the text as the
dictionary. It costs little more than how the bytes differ from the text.
"""

from __future__ import annotations

import struct

from zlib_ng import zlib_ng

_SHORT_CHAIN = 64

_WHOLE, _DEFLATED, _QUOTED = b"W", b"Z", b"Q"
_MIDDLES = {b"D": _WHOLE, b"E": _DEFLATED, b"F": _QUOTED}
"""How the middle of a difference is written, by the tag of the difference."""
_TAGS = {form: tag for tag, form in _MIDDLES.items()}
_DELTA = struct.Struct("<cII")
_QUOTE = struct.Struct("<III")
_WORTH_QUOTING = 1024
_PROBE = 48
_WORTH_DEFLATING = 64
_LEVEL, _RAW, _MEMORY = 1, -15, 8
"""The fastest, without a header: raw deflate, as zlib wrote and reads it, too."""
_WINDOW = 32 * 1024
"""How much of a dictionary deflate looks at: the end of it."""


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
    """Length of the longest common suffix of at most ``limit`` bytes; it is short as a rule."""
    low, high = 0, min(limit, 16)
    while high < limit and a[len(a) - high :] == b[len(b) - high :]:
        low, high = high, min(limit, 8 * high)
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
            form, written = _write(middle, text)
            return _DELTA.pack(_TAGS[form], prefix, suffix) + written
    form, written = _write(data, text)
    return form + written


def is_whole(blob: bytes) -> bool:
    return blob[:1] not in _MIDDLES


def decode(blob: bytes, base: bytes | None, text: bytes | None = None) -> bytes:
    """The bytes that `encode` was given. ``base`` and ``text`` must be the same as there.

    Raises ValueError when the blob is a difference and there is no base.
    """
    if is_whole(blob):
        return _read(blob[:1], blob[1:], text or b"")
    if base is None:
        raise ValueError("a difference cannot be decoded without the bytes that it refers to")
    tag, prefix, suffix = _DELTA.unpack_from(blob)
    middle = _read(_MIDDLES[tag], blob[_DELTA.size :], text or b"")
    return base[:prefix] + middle + (base[len(base) - suffix :] if suffix else b"")


def _write(data: bytes, text: bytes | None) -> tuple[bytes, bytes]:
    """``data`` in the form that is worth it, and which that is."""
    if text is None or len(data) < _WORTH_DEFLATING:
        return _WHOLE, data
    if quote := _quote(data, text):
        start, _, length = quote
        rest = data[:start] + data[start + length :]
        return _QUOTED, _QUOTE.pack(*quote) + _deflate(rest, b"")
    deflated = _deflate(data, text)
    return (_DEFLATED, deflated) if len(deflated) < len(data) else (_WHOLE, data)


def _read(form: bytes, written: bytes, text: bytes) -> bytes:
    """What `_write` was given."""
    if form == _WHOLE:
        return written
    if form == _DEFLATED:
        return _inflate(written, text)
    start, at, length = _QUOTE.unpack_from(written)
    rest = _inflate(written[_QUOTE.size :], b"")
    return rest[:start] + text[at : at + length] + rest[start:]


def _quote(data: bytes, text: bytes) -> tuple[int, int, int] | None:
    """A long run of ``data`` that stands in ``text``: where in each, and its length. The middle of it is looked for."""
    if len(data) < _WORTH_QUOTING:
        return None
    middle = len(data) // 2
    found = text.find(data[middle : middle + _PROBE])
    if found < 0:
        return None
    behind = common_prefix(data[middle:], text[found:])
    before = common_suffix(data[:middle], text[:found], min(middle, found))
    length = before + behind
    return (middle - before, found - before, length) if length >= _WORTH_QUOTING else None


def _deflate(data: bytes, text: bytes) -> bytes:
    squeeze = zlib_ng.compressobj(_LEVEL, zlib_ng.DEFLATED, _RAW, _MEMORY, zdict=text[-_WINDOW:])
    return squeeze.compress(data) + squeeze.flush()


def _inflate(data: bytes, text: bytes) -> bytes:
    expand = zlib_ng.decompressobj(_RAW, zdict=text[-_WINDOW:])
    return expand.decompress(data) + expand.flush()
