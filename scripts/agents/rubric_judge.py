"""A judge for the demo: it speaks like an LLM behind an OpenAI-compatible server, and judges by the agents' own rules.

It reads a RULER request (the shared context and the trajectories as a JSON document in the last message), works
out which demo task it is about, computes each trajectory's true reward and answers with the *ranks* of the rewards
within the group, spread evenly over 0 to 1. Like a real RULER score its scores say nothing in absolute terms.

``--control shuffle`` deals the scores out at random within the group: whoever still learns from it has a leak.
Run it with ``python -m scripts.agents.rubric_judge --port 8402``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError

from scripts.agents import corridor, words

MODEL = "rubric-judge"


class Control(StrEnum):
    """What is done to the scores before they are sent."""

    NONE = "none"
    SHUFFLE = "shuffle"


class JudgeError(Exception):
    """A request that cannot be judged; its text goes to the client."""


class TextPart(BaseModel):
    """A piece of a message that came in pieces; other kinds than text count as nothing."""

    type: str
    text: str = ""


class Message(BaseModel):
    """A chat message, as far as a judge looks at it."""

    role: str
    content: str | list[TextPart] | None = None

    def text(self) -> str:
        """The message's text, its pieces joined."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class Trajectory(BaseModel):
    """What one member of the group did after the shared context."""

    id: str
    messages: list[Message]


class Group(BaseModel):
    """The JSON document of a RULER request."""

    context: list[Message] = []
    tools: list[object] | None = None
    trajectories: list[Trajectory] = Field(min_length=1)


class ChatRequest(BaseModel):
    """A chat completion request, as far as a judge looks at it."""

    model: str
    messages: list[Message] = Field(min_length=1)
    stream: Literal[False] | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """One trajectory's last answer and true reward."""

    id: str
    answer: str
    reward: float


def ranks(rewards: Sequence[float]) -> list[float]:
    """Scores, 0 to 1: distinct rewards spread evenly in their order, ties equal, 0.5 for all where none differ."""
    distinct = sorted(set(rewards))
    if len(distinct) < 2:
        return [0.5] * len(rewards)
    return [distinct.index(reward) / (len(distinct) - 1) for reward in rewards]


def judge(group: Group, generator: random.Random | None = None) -> dict[str, object]:
    """The judge's answer ``{"scores": [{trajectory_id, explanation, score}]}``, in the order of the request.

    With a ``generator`` the scores are dealt out anew at random. Raises ``JudgeError`` for a task that is not ours.
    """
    judged = [_judge_one(group.context, trajectory) for trajectory in group.trajectories]
    scores = ranks([one.reward for one in judged])
    if generator is not None:
        generator.shuffle(scores)
    best_first = sorted(set(scores), reverse=True)
    return {
        "scores": [
            {
                "trajectory_id": one.id,
                "explanation": f"answered {one.answer!r}, rank {best_first.index(score) + 1} of {len(best_first)}",
                "score": score,
            }
            for one, score in zip(judged, scores, strict=True)
        ]
    }


def _judge_one(context: Sequence[Message], trajectory: Trajectory) -> Judged:
    messages = [*context, *trajectory.messages]
    # Both agents begin without examples: whatever an assistant said here, this trajectory's model said.
    answers = [message.text() for message in messages if message.role == "assistant"]
    reward = _true_reward(messages, answers)
    if reward is None:
        raise JudgeError(f"trajectory {trajectory.id!r} is none of the tasks that I know (words, corridor)")
    # Rounded, so that equal sums that were added up in another order tie.
    return Judged(trajectory.id, answers[-1] if answers else "", round(reward, 9))


def _true_reward(messages: Sequence[Message], answers: Sequence[str]) -> float | None:
    said = {(message.role, message.text()) for message in messages if message.role in ("system", "user")}
    if any(("user", prompt) in said for prompt in words.SCENARIOS.values()):
        return words.reward(answers[-1]) if answers else 0.0
    for scenario, walk in corridor.SCENARIOS.items():
        if ("system", corridor.rules(walk)) in said:
            return corridor.reward(answers, scenario)
    return None


def create_app(control: Control = Control.NONE, seed: int = 0) -> FastAPI:
    """The judge as an ASGI application. With ``shuffle``, ``seed`` fixes the order of the deals."""
    app = FastAPI(title="rubric judge", openapi_url=None)
    generator = random.Random(seed) if control is Control.SHUFFLE else None

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "slipstream"}
        return {"object": "list", "data": [model]}

    @app.post("/v1/chat/completions")
    async def chat_completions(request: ChatRequest) -> dict[str, object]:
        verdict = json.dumps(judge(_group(request.messages[-1]), generator))
        return _completion(request, verdict)

    @app.exception_handler(JudgeError)
    async def not_judged(_: Request, error: JudgeError) -> JSONResponse:
        return _error(str(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        return _error(f"not a chat completion request: {_first(error.errors())}")

    return app


def _group(message: Message) -> Group:
    if message.role != "user":
        raise JudgeError(f"the last message must be the user's, not the {message.role}'s")
    try:
        return Group.model_validate_json(message.text())
    except ValidationError as error:
        raise JudgeError(f"the last message is not a RULER document: {_first(error.errors())}") from error


def _completion(request: ChatRequest, verdict: str) -> dict[str, object]:
    read = _tokens(message.text() for message in request.messages)
    written = _tokens([verdict])
    choice = {"index": 0, "message": {"role": "assistant", "content": verdict}, "finish_reason": "stop"}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _tokens(texts: Iterable[str]) -> int:
    """About as many tokens as a model would count: four characters each, and some for the message around them."""
    return sum(4 + len(text) // 4 for text in texts)


def _error(message: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status_code=400)


def _first(errors: Sequence[Any]) -> str:
    where = ".".join(str(part) for part in errors[0]["loc"])
    return f"{where}: {errors[0]['msg']}" if where else str(errors[0]["msg"])


def main(arguments: list[str] | None = None) -> int:
    """Serve the judge on the loopback interface until it is told to end."""
    parser = argparse.ArgumentParser(description="Serve a rule-based stand-in for an LLM judge of the demo's tasks.")
    parser.add_argument("--port", type=int, default=8402, help="port on 127.0.0.1 (default: %(default)s)")
    parser.add_argument(
        "--control",
        type=Control,
        choices=list(Control),
        default=Control.NONE,
        help="shuffle: deal the scores out at random within each group, as a negative control",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the shuffle (default: %(default)s)")
    options = parser.parse_args(arguments)
    uvicorn.run(create_app(options.control, options.seed), host="127.0.0.1", port=options.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
