"""The domain's types: what flows between the rooms. Times are seconds since the epoch, UTC."""

from __future__ import annotations

import os
import re
import time
from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

from storage.states import CallOutcome, ClosedBy, GroupState, RunState, SessionState, VersionState

Owner = NewType("Owner", str)
CallId = NewType("CallId", str)
"""32 hexadecimal digits: 12 of milliseconds, 20 of chance. Sorts by time."""
SessionKey = NewType("SessionKey", int)
"""The row of one episode of one session id of one owner."""
GroupId = NewType("GroupId", str)
RunId = NewType("RunId", str)
VersionNumber = NewType("VersionNumber", int)
"""`n` of `<policy>@<n>`; 0 is the base model."""

DEFAULT_OWNER = Owner("default")
BASE = VersionNumber(0)

_POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_id() -> str:
    """32 hexadecimal digits that sort by time (to the millisecond) and never repeat."""
    return f"{int(time.time() * 1000):012x}{os.urandom(10).hex()}"


def version_name(policy: str, number: VersionNumber) -> str:
    """``policy@3``: the version's name on the wire, in vLLM and on disk."""
    return f"{policy}@{number}"


def parse_version(policy: str, name: str) -> VersionNumber | None:
    """The number in ``<policy>@<n>``, or None when ``name`` is not of that form."""
    head, at, tail = name.rpartition("@")
    if not at or head != policy or not re.fullmatch(r"0|[1-9][0-9]{0,8}", tail):
        return None
    return VersionNumber(int(tail))


def is_policy_name(name: str) -> bool:
    """Whether ``name`` can stand in file names and in vLLM's model names."""
    return _POLICY_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose session this is, and which. An episode is a row of its own; see `SessionKey`."""

    owner: Owner
    session_id: str


class TaggedBy(StrEnum):
    """Where the session or the scenario of a call was found."""

    HEADER = "header"
    URL = "url"
    BODY = "body"
    INFERRED = "inferred"
    NONE = "none"
    """Nowhere: the call is a session of its own, or has no scenario."""


@dataclass(frozen=True, slots=True)
class CallStart:
    """What is known of a call when its request is whole."""

    id: CallId
    identity: Identity
    scenario: str | None
    split: str
    """``train`` or ``eval``."""
    agent: str | None
    dialect: str
    path: str
    model: str
    """As the client wrote it."""
    version: VersionNumber
    """The one that answers."""
    pinned: VersionNumber
    """The one that the session is pinned to; another one answers where the client names it."""
    upstream: str
    streamed: bool
    started_at: float
    session_by: TaggedBy = TaggedBy.HEADER
    scenario_by: TaggedBy = TaggedBy.HEADER
    ambiguous: tuple[str, ...] = ()
    """Sessions of this owner, this one maybe among them, of which nobody can tell whether the call continues them."""
    supersedes: CallId | None = None
    """The call, abandoned by its client, that this one repeats."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a call ended."""

    outcome: CallOutcome
    status: int | None
    """None when no response head arrived."""
    error: str | None
    first_byte_at: float | None
    ended_at: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One sampled answer: exact ids (int32), one logprob each (float32)."""

    index: int
    ids: array[int]
    logprobs: array[float]
    finish: str | None
    """vLLM's reason for its end: ``stop``, ``length``, ``tool_calls``, ..."""


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call as the trainer reads it."""

    seq: int
    id: CallId
    agent: str | None
    version: VersionNumber
    outcome: CallOutcome
    status: int | None
    """Of vLLM's answer; None when none came."""
    not_trainable: str | None
    started_at: float
    sampling: dict[str, Any]
    """The effective sampling parameters, as vLLM used them."""
    token_limit: int | None
    """How many tokens an answer may have, as the client says it; 0: it says nothing. None: not kept at that time."""
    parent: int | None
    """`seq` of the call whose conversation this one goes on with."""
    continues: int | None
    """`index` of the parent's choice that it goes on from; None: from none of them, or as it was not given."""
    restates: bool
    """Its messages have an answer in the place of the parent's, but none that was given."""
    prompt_ids: array[int]
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Session:
    key: SessionKey
    owner: Owner
    session_id: str
    episode: int
    scenario: str | None
    split: str
    state: SessionState
    closed_by: ClosedBy | None
    reason: str | None
    version: VersionNumber
    """The version it is pinned to."""
    opened_at: float
    last_call_at: float
    closed_at: float | None
    calls: int
    session_by: TaggedBy = TaggedBy.HEADER
    """Where its first call's session was found."""
    scenario_by: TaggedBy = TaggedBy.HEADER


@dataclass(frozen=True, slots=True)
class Reward:
    id: str
    identity: Identity
    episode: int | None
    """None: the newest episode at the time of its arrival."""
    name: str
    source: str
    """``client`` or ``admin``."""
    value: float
    reason: str | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Member:
    """One session in a group. ``reward`` is None until the group is scored."""

    session: SessionKey
    reward: float | None = None
    explanation: str | None = None
    attempt: str | None = None
    """Digest of what the judge saw of it; None where it saw nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    id: GroupId
    owner: Owner
    scenario: str
    split: str
    state: GroupState
    reason: str | None
    created_at: float
    members: tuple[Member, ...]
    judge: str | None = None
    judge_tokens: int = 0
    judge_seed: int | None = None
    """From which the order and the ids were drawn under which the judge saw the members."""
    judge_cut: dict[str, int] | None = None
    """What the judge was not shown, for it did not fit: ``tokens`` in all, from how many ``texts``, whole ``messages``;
    None: nothing."""
    judge_silences: int = 0
    """How often the judge answered for others, and not for this group."""
    judge_due: float | None = None
    """Before when it is not asked again."""
    run: RunId | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    id: RunId
    scenario: str | None
    settings: dict[str, Any]
    requested_at: float


@dataclass(frozen=True, slots=True)
class Run:
    id: RunId
    kind: str
    """``train``, or ``import`` for an adapter that was brought in."""
    state: RunState
    reason: str | None
    scenario: str | None
    requested_at: float
    started_at: float | None
    ended_at: float | None
    parent: VersionNumber | None
    version: VersionNumber | None
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Version:
    number: VersionNumber
    run: RunId | None
    parent: VersionNumber | None
    state: VersionState
    reason: str | None
    path: str | None
    """The adapter's folder; None for the base model."""
    digest: str | None
    """sha256 of ``adapter_model.safetensors``, from the manifest."""
    created_at: float
    verified_at: float | None = None
    live_at: float | None = None
    probe: dict[str, Any] = field(default_factory=dict)
