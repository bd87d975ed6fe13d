"""Calls made by hand, and what sequences of them hold."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

from storage.states import CallOutcome
from storage.types import Call, CallId, Choice, VersionNumber
from trainer.batches import Sequence

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "structured": False}


def choice(ids: Many[int], logprob: float = -0.5, index: int = 0, finish: str = "stop") -> Choice:
    return Choice(index, array("i", ids), array("f", [logprob] * len(ids)), finish)


def call(seq: int, prompt: Many[int], *choices: Choice, **changes: Any) -> Call:
    plain = Call(
        seq=seq,
        id=CallId(f"call {seq}"),
        agent=None,
        version=VersionNumber(0),
        outcome=CallOutcome.COMPLETE,
        status=200,
        not_trainable=None,
        started_at=float(seq),
        sampling=NEUTRAL,
        token_limit=None,
        parent=None,
        continues=None,
        restates=False,
        prompt_ids=array("i", prompt),
        choices=choices,
    )
    return replace(plain, **changes)


def trained(sequence: Sequence) -> list[int]:
    return [int(token) for token in sequence.ids[sequence.trained]]


def ids(sequence: Sequence) -> list[int]:
    return [int(token) for token in sequence.ids]
