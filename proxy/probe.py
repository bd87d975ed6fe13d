"""The probe: does vLLM serve exactly the adapter that was trained?

The trainer leaves its own logprobs of some trained tokens, under the parent and under the new version. vLLM is asked
for the same, and its (new − parent) is regressed through the origin on the trainer's. The right adapter gives a slope
of 1, the parent in its place 0. Where the update moved these tokens too little to tell, name, path and digest must do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import orjson

from proxy.upstreams import Upstream, Upstreams

SLOPE = (0.7, 1.3)
MAX_STANDARD_ERROR = 0.1


class Verdict(StrEnum):
    MOVED = "moved as trained"
    IDENTITY_ONLY = "identity only"
    WRONG = "not the trained adapter"


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One sequence of the probe. ``parent`` and ``new`` are the trainer's logprobs of ``ids[p]`` given ``ids[:p]``."""

    ids: list[int]
    positions: list[int]
    parent: list[float]
    new: list[float]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    verdict: Verdict
    slope: float | None
    standard_error: float | None
    tokens: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(trained: Sequence[float], served: Sequence[float]) -> ProbeResult:
    """Regress ``served`` on ``trained``, both (new − parent) of the same tokens, in nats."""
    n = len(trained)
    power = sum(x * x for x in trained)
    if n < 2 or power == 0:
        return ProbeResult(Verdict.IDENTITY_ONLY, None, None, n)
    slope = sum(x * y for x, y in zip(trained, served, strict=True)) / power
    residual = sum((y - slope * x) ** 2 for x, y in zip(trained, served, strict=True)) / (n - 1)
    error = math.sqrt(residual / power)
    if error > MAX_STANDARD_ERROR:
        verdict = Verdict.IDENTITY_ONLY
    else:
        verdict = Verdict.MOVED if SLOPE[0] <= slope <= SLOPE[1] else Verdict.WRONG
    return ProbeResult(verdict, round(slope, 4), round(error, 4), n)


async def probe(
    upstreams: Upstreams, upstream: Upstream, rows: Sequence[ProbeRow], parent: str, new: str
) -> ProbeResult:
    """Ask ``upstream`` for the probe's tokens under the models ``parent`` and ``new``. Raises `UpstreamFault`."""
    trained: list[float] = []
    served: list[float] = []
    for row in rows:
        before = await _logprobs(upstreams, upstream, row, parent)
        after = await _logprobs(upstreams, upstream, row, new)
        trained += [n - p for n, p in zip(row.new, row.parent, strict=True)]
        served += [a - b for a, b in zip(after, before, strict=True)]
    return judge(trained, served)


async def _logprobs(upstreams: Upstreams, upstream: Upstream, row: ProbeRow, model: str) -> list[float]:
    document = {
        "model": upstream.base,
        "prompt": row.ids,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 0,
    }
    body = await upstreams.post(upstream, "/v1/completions", document, model)
    found = orjson.loads(body)["choices"][0]["prompt_logprobs"]
    return [found[p][str(row.ids[p])]["logprob"] for p in row.positions]
