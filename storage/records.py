"""What a journal record holds, as bytes and as types. The writer's and the reader's side of one format."""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from storage.states import CallOutcome, ClosedBy
from storage.text import dumps
from storage.types import CallEnd, CallId, CallStart, Identity, Owner, Reward, TaggedBy, VersionNumber

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Close:
    """A session closes; recorded behind its calls."""

    identity: Identity
    by: ClosedBy
    at: float


def pack_start(start: CallStart) -> bytes:
    """The head of a start record; the request's body follows it."""
    head = _dumps(start)
    return _LENGTH.pack(len(head)) + head


def unpack_start(payload: bytes) -> tuple[CallStart, bytes]:
    (length,) = _LENGTH.unpack_from(payload)
    values = orjson.loads(payload[_LENGTH.size : _LENGTH.size + length])
    values["identity"] = _identity(values["identity"])
    values["id"] = CallId(values["id"])
    values["version"], values["pinned"] = VersionNumber(values["version"]), VersionNumber(values["pinned"])
    if not values.pop("tagged", True):  # as older journals say it
        values["session_by"] = TaggedBy.NONE
    for name in ("session_by", "scenario_by"):
        values[name] = TaggedBy(values.get(name, TaggedBy.HEADER))
    values["ambiguous"] = tuple(values.get("ambiguous", ()))
    return CallStart(**values), payload[_LENGTH.size + length :]


def pack_end(end: CallEnd) -> bytes:
    return _dumps(end)


def unpack_end(payload: bytes) -> CallEnd:
    values = orjson.loads(payload)
    values["outcome"] = CallOutcome(values["outcome"])
    return CallEnd(**values)


def pack_reward(reward: Reward) -> bytes:
    return _dumps(reward)


def unpack_reward(payload: bytes) -> Reward:
    values = orjson.loads(payload)
    values["identity"] = _identity(values["identity"])
    return Reward(**values)


def pack_close(close: Close) -> bytes:
    return _dumps(close)


def unpack_close(payload: bytes) -> Close:
    values = orjson.loads(payload)
    return Close(_identity(values["identity"]), ClosedBy(values["by"]), values["at"])


def _dumps(record: CallStart | CallEnd | Reward | Close) -> bytes:
    try:
        return orjson.dumps(record)
    except TypeError:  # text that JSON cannot hold
        return dumps(asdict(record))


def _identity(values: dict[str, Any]) -> Identity:
    return Identity(Owner(values["owner"]), values["session_id"])
