"""States, and beside each enum the one table of its legal moves. Storage refuses every other move."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from storage.errors import IllegalMove


class SessionState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    SKIPPED = "skipped"


SESSION_MOVES: Mapping[SessionState, frozenset[SessionState]] = {
    SessionState.OPEN: frozenset({SessionState.CLOSED}),
    # `closed (idle)` opens again when a call comes before a group claims it.
    SessionState.CLOSED: frozenset({SessionState.OPEN, SessionState.SKIPPED}),
    SessionState.SKIPPED: frozenset(),
}


class ClosedBy(StrEnum):
    """Why a session is closed; only an `idle` one opens again."""

    ENDED = "ended"
    IDLE = "idle"


class GroupState(StrEnum):
    READY = "ready"
    SCORED = "scored"
    TRAINED = "trained"
    SKIPPED = "skipped"
    EVAL = "eval"


GROUP_MOVES: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.READY: frozenset({GroupState.SCORED, GroupState.SKIPPED}),
    GroupState.SCORED: frozenset({GroupState.TRAINED, GroupState.SKIPPED, GroupState.EVAL}),
    GroupState.TRAINED: frozenset(),
    GroupState.SKIPPED: frozenset(),
    GroupState.EVAL: frozenset(),
}


class VersionState(StrEnum):
    TRAINED = "trained"
    VERIFIED = "verified"
    LIVE = "live"
    STANDBY = "standby"
    RETIRED = "retired"
    REJECTED = "rejected"


VERSION_MOVES: Mapping[VersionState, frozenset[VersionState]] = {
    VersionState.TRAINED: frozenset({VersionState.VERIFIED, VersionState.REJECTED}),
    VersionState.VERIFIED: frozenset({VersionState.LIVE, VersionState.REJECTED}),
    VersionState.LIVE: frozenset({VersionState.STANDBY, VersionState.REJECTED}),
    VersionState.STANDBY: frozenset({VersionState.LIVE, VersionState.RETIRED}),
    VersionState.RETIRED: frozenset(),
    VersionState.REJECTED: frozenset(),
}


class RunState(StrEnum):
    REQUESTED = "requested"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.REQUESTED: frozenset({RunState.RUNNING, RunState.SKIPPED, RunState.FAILED}),
    RunState.RUNNING: frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.SKIPPED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.SKIPPED: frozenset(),
}

ENDED_RUNS = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.SKIPPED})


class CallOutcome(StrEnum):
    """How a call ended, as the recorder saw it."""

    COMPLETE = "complete"
    CLIENT_GONE = "client_gone"
    UPSTREAM_ERROR = "upstream_error"
    """vLLM answered with an error status, or not at all."""
    TRUNCATED = "truncated"
    """The response ended before its end (no `[DONE]`, a reset, an error frame)."""
    INTERRUPTED = "interrupted"
    """The proxy died during the call; found at the next start."""
    SUPERSEDED = "superseded"
    """The client left it, and made it again."""


class Outcome(StrEnum):
    """What became of a closed session in training."""

    TRAINED = "trained"
    EVALUATED = "evaluated"
    SKIPPED = "skipped"


S = TypeVar("S", SessionState, GroupState, VersionState, RunState)


def check_move(moves: Mapping[S, frozenset[S]], old: S, new: S, what: str) -> None:
    """Raise `IllegalMove` unless ``new`` may follow ``old``; ``what`` names the thing in the text."""
    if new not in moves[old]:
        allowed = ", ".join(sorted(moves[old])) or "nothing: it is final"
        raise IllegalMove(f"{what} cannot go from {old} to {new} (allowed: {allowed})")
