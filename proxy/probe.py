"""The probe: does vLLM serve exactly the adapter that was trained?

The trainer leaves its own logprobs of some trained tokens, under the parent and under the new version, computed in the
precision in which vLLM serves. vLLM is asked for the same, and its (new − parent) is compared with the trainer's by
orthogonal regression through the origin: both sides carry rounding noise of the same size, which an ordinary regression
would take for a smaller slope. The right adapter gives a slope of 1, the parent in its place 0. Where the update moved
these tokens too little to tell, name, path and digest must do.

Source of the estimate and its standard error: Jolicoeur, "Interval estimation of the slope of the major axis" (1968).
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import orjson

from proxy.errors import UpstreamFault
from proxy.upstreams import Upstream, Upstreams
from storage import calls
from storage.database import Database
from storage.types import CallId

SLOPE = (0.7, 1.3)
MAX_STANDARD_ERROR = 0.1
MIN_TOKENS = 10
"""What too wide a slope still says needs this many tokens."""
BEYOND = 2.0
"""So many standard errors outside the band of slopes show another adapter."""
EXCLUDED = 4.0
"""So many standard errors between the slope and 1 show another adapter."""
CLEAR_MOVE = 0.3
"""Nats, root mean square: above the engines' rounding, so that the right adapter correlates by 0.9 or more."""
CORRELATED = 0.7


class Verdict(StrEnum):
    MOVED = "moved as trained"
    IDENTITY_ONLY = "identity only"
    WRONG = "not the trained adapter"


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One sequence of the probe. ``parent`` and ``new`` are the trainer's logprobs of ``ids[p]`` given ``ids[:p]``.

    The ids stand in storage (`calls.path`), for as long as the session does.
    """

    call: CallId
    choice: int
    positions: list[int]
    parent: list[float]
    new: list[float]

    def __post_init__(self) -> None:
        if not len(self.positions) == len(self.parent) == len(self.new):
            raise ValueError("a probe needs two logprobs for each position")
        if not self.positions or min(self.positions) < 1:
            raise ValueError("a probe's positions begin behind the first token")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    verdict: Verdict
    slope: float | None
    standard_error: float | None
    tokens: int
    reason: str | None = None
    """Why tokens were missing, in words."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(trained: Sequence[float], served: Sequence[float]) -> ProbeResult:
    """Compare ``served`` with ``trained``, both (new − parent) of the same tokens, in nats."""
    n = len(trained)
    xx = sum(x * x for x in trained)
    yy = sum(y * y for y in served)
    xy = sum(x * y for x, y in zip(trained, served, strict=True))
    if n < 2 or xx == 0:
        return ProbeResult(Verdict.IDENTITY_ONLY, None, None, n)
    if xy == 0:
        # Nothing in common. Were vLLM's tokens to move alone, no slope would describe it.
        slope, correlation, error = 0.0, 0.0, math.sqrt(yy / xx / n)
    else:
        slope = (yy - xx + math.hypot(yy - xx, 2 * xy)) / (2 * xy)
        correlation = xy / math.sqrt(xx * yy)
        error = abs(slope / correlation) * math.sqrt(max(0.0, 1 - correlation**2) / n)
    return ProbeResult(_verdict(slope, error, correlation, math.sqrt(xx / n), n), round(slope, 4), round(error, 4), n)


def _verdict(slope: float, error: float, correlation: float, move: float, n: int) -> Verdict:
    """``move`` is the root mean square of what the trainer saw change, in nats."""
    if error > MAX_STANDARD_ERROR:
        # Too wide to confirm the right adapter is not too wide to exclude it.
        unlike = abs(slope - 1) > EXCLUDED * error or (move > CLEAR_MOVE and correlation < CORRELATED)
        return Verdict.WRONG if unlike and n >= MIN_TOKENS else Verdict.IDENTITY_ONLY
    if SLOPE[0] <= slope <= SLOPE[1]:
        return Verdict.MOVED
    # vLLM's rounding is not the trainer's: the right adapter may fall a little outside (1.36 ± 0.09 was seen).
    beyond = max(SLOPE[0] - slope, slope - SLOPE[1])
    return Verdict.WRONG if beyond > BEYOND * error else Verdict.IDENTITY_ONLY


async def probe(
    db: Database, upstreams: Upstreams, upstream: Upstream, rows: Sequence[ProbeRow], parent: str, new: str
) -> ProbeResult:
    """Ask ``upstream`` for the probe's tokens under the models ``parent`` and ``new``. Raises `UpstreamFault`.

    Rows whose session was deleted are passed over; where too few tokens are left, they say nothing.
    """
    found = await asyncio.to_thread(_recorded, db, rows)
    tokens = sum(len(row.positions) for row, _ in found)
    if len(found) < len(rows) and tokens < MIN_TOKENS:
        all_tokens = sum(len(row.positions) for row in rows)
        reason = f"{tokens} of {all_tokens} tokens are left: sessions of the probe were deleted"
        return ProbeResult(Verdict.IDENTITY_ONLY, None, None, tokens, reason)
    before = await asyncio.gather(*(_logprobs(upstreams, upstream, *pair, parent) for pair in found))
    after = await asyncio.gather(*(_logprobs(upstreams, upstream, *pair, new) for pair in found))
    trained = [n - p for row, _ in found for n, p in zip(row.new, row.parent, strict=True)]
    served = [a - b for new_, old in zip(after, before, strict=True) for a, b in zip(new_, old, strict=True)]
    return judge(trained, served)


def _recorded(db: Database, rows: Sequence[ProbeRow]) -> list[tuple[ProbeRow, array[int]]]:
    """The rows that are still in storage, each with its ids up to the last position."""
    paths = [(row, calls.path(db, row.call, row.choice)) for row in rows]
    return [
        (row, ids[: max(row.positions) + 1]) for row, ids in paths if ids is not None and len(ids) > max(row.positions)
    ]


async def _logprobs(
    upstreams: Upstreams, upstream: Upstream, row: ProbeRow, ids: array[int], model: str
) -> list[float]:
    document = {
        "model": upstream.base,
        "prompt": ids.tolist(),
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 0,
    }
    body = await upstreams.post(upstream, "/v1/completions", document, model)
    try:
        found = orjson.loads(body)["choices"][0]["prompt_logprobs"]
        return [float(found[p][str(ids[p])]["logprob"]) for p in row.positions]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UpstreamFault(f"{upstream.url} answered the probe without logprobs: {error!r}") from error
