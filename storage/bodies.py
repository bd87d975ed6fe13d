"""Bodies and token ids of calls as they lie in the database: differences to the call that a call continues."""

from __future__ import annotations

from collections import defaultdict

from storage import deltas
from storage.database import Database, Row


def readable(answered: bytes, tools: bytes, shown: bytes) -> bytes:
    """What stands readable of a request: in its own row, and as the answers of the call that it continues."""
    return answered + tools + shown


def decode_request(row: Row, answered: bytes, base: bytes | None) -> bytes:
    text = readable(answered, (row["tools"] or "").encode(), row["input"].encode())
    return deltas.decode(row["request"], base, text)


_PROLONGED = b"P"
"""The ids are a difference to the base's prompt with the answer behind it. Older rows have the prompt alone."""


def encode_ids(ids: bytes, base: bytes | None, sampled: dict[int, bytes], continues: int | None) -> bytes:
    """``base`` and ``sampled``: the prompt and the choices of the call that ``ids`` are stored as a difference to."""
    return _PROLONGED + deltas.encode(ids, None if base is None else base + sampled.get(continues or 0, b""))


def decode_ids(row: Row, base: bytes | None, sampled: dict[int, bytes]) -> bytes:
    blob = row["prompt_ids"]
    if blob[:1] != _PROLONGED:
        return deltas.decode(blob, base)
    return deltas.decode(blob[1:], None if base is None else base + sampled.get(row["continues"] or 0, b""))


def sampled(db: Database, column: str, value: int) -> dict[int, dict[int, bytes]]:
    """The ids of all choices, by call and number."""
    found: dict[int, dict[int, bytes]] = defaultdict(dict)
    for row in db.all(f"SELECT choices.* FROM choices JOIN calls ON seq = call WHERE {column} = ?", (value,)):
        found[row["call"]][row["number"]] = row["ids"]
    return found
