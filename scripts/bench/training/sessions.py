"""Recorded sessions as agents leave them: a system prompt with tools, a task, answers with tool calls, and results.

Linear conversations; those of a group begin with the same prompt. The texts are made up from a seed, the ids are those
of the model's own tokenizer. The logprobs are filled in by ``contender`` with what the model says of the answers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.batches import Batch, Sequence

ATTEMPTS = 8
"""Sessions of a group."""
_PLACES = ("Lisbon", "Tromsø", "Kyoto", "Accra", "Quito", "Leipzig", "Perth", "Oaxaca", "Tartu", "Galway")
_GOODS = ("a desk lamp", "two office chairs", "a rain jacket", "printer paper", "a water filter", "a bicycle pump")
_STATES = ("in transit", "delivered", "held at customs", "returned to the sender", "waiting for pick-up")
_THOUGHTS = (
    "I will look at the next order before I answer.",
    "That one is settled, so the other order has to be checked too.",
    "The result does not name a date. I need to ask for the details.",
    "Nothing is wrong here; the delay must come from the carrier.",
    "The customer asked for all of them, and one is still missing.",
)
_SYSTEM = (
    "You are the assistant of a mail-order shop. Answer the customer's question with the help of the tools. Call one "
    "tool at a time, as a JSON object on a line of its own, and wait for its result. Tools: "
    '{{"name": "find_order", "arguments": {{"number": "integer"}}}}, '
    '{{"name": "track_parcel", "arguments": {{"number": "integer", "details": "boolean"}}}}, '
    '{{"name": "refund", "arguments": {{"number": "integer", "reason": "string"}}}}. Today is day {day} of the year.'
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How many sessions, and how long they are."""

    groups: int
    turns: int
    seed: int = 0


def recorded(model: Path, plan: Plan) -> Batch:
    """The sessions of ``plan`` as the product's batch, without logprobs. Advantages are centred within a group."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    chance = random.Random(plan.seed)
    sequences: list[Sequence] = []
    advantages: list[float] = []
    for _ in range(plan.groups):
        prompt = _prompt(chance)
        sequences += [_session(tokenizer, prompt, plan.turns, chance) for _ in range(ATTEMPTS)]
        rewards = [chance.random() for _ in range(ATTEMPTS)]
        advantages += [reward - sum(rewards) / ATTEMPTS for reward in rewards]
    return Batch(tuple(sequences), np.array(advantages, dtype=np.float32))


def plain(ids: list[int], trained: list[bool], version: int = 0) -> Sequence:
    """Sampled by ``version`` at temperature 1 without truncation; no logprobs yet. The first token is never trained."""
    count = len(ids)
    return Sequence(
        ids=np.array(ids, dtype=np.int32),
        trained=np.array([False, *trained[1:]]),
        logprobs=np.zeros(count, dtype=np.float32),
        temperature=np.ones(count, dtype=np.float32),
        top_p=np.ones(count, dtype=np.float32),
        top_k=np.zeros(count, dtype=np.int32),
        version=np.full(count, version, dtype=np.int32),
    )


def _session(tokenizer: object, prompt: str, turns: int, chance: random.Random) -> Sequence:
    parts = [(prompt, False)]
    for turn in range(turns):
        parts.append((_answer(chance, last=turn == turns - 1) + "<|im_end|>", True))
        if turn < turns - 1:
            parts.append((f"\n<|im_start|>user\n{_result(chance)}<|im_end|>\n<|im_start|>assistant\n", False))
    ids: list[int] = []
    trained: list[bool] = []
    for text, sampled in parts:
        found = tokenizer.encode(text, add_special_tokens=False).ids  # type: ignore[attr-defined]  # carries no types
        ids += found
        trained += [sampled] * len(found)
    return plain(ids, trained)


def _prompt(chance: random.Random) -> str:
    numbers = ", ".join(str(chance.randrange(1000, 9999)) for _ in range(4))
    task = f"I ordered {chance.choice(_GOODS)} to {chance.choice(_PLACES)}. What became of my orders {numbers}?"
    system = _SYSTEM.format(day=chance.randrange(1, 366))
    turns = (("system", system), ("user", task))
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


def _answer(chance: random.Random, *, last: bool) -> str:
    if last:
        return (
            f"All four are found: the one to {chance.choice(_PLACES)} is {chance.choice(_STATES)}, three have arrived."
        )
    details = chance.choice(("true", "false"))
    call = (
        f'{{"name": "track_parcel", "arguments": {{"number": {chance.randrange(1000, 9999)}, "details": {details}}}}}'
    )
    return f"{chance.choice(_THOUGHTS)}\n{call}"


def _result(chance: random.Random) -> str:
    return (
        f'{{"number": {chance.randrange(1000, 9999)}, "state": "{chance.choice(_STATES)}", "content": '
        f'"{chance.choice(_GOODS)}", "place": "{chance.choice(_PLACES)}", "days": {chance.randrange(1, 30)}}}'
    )
