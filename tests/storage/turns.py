"""A session of an agent with tools, as each dialect writes it: fifty turns of realistic size, plain or streamed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

TOOLS = [
    {"name": name, "description": f"Use {name} when the task asks for it. " * 4, "parameters": {"type": "object"}}
    for name in ("search", "read_file", "write_file", "run")
]
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One call: the bytes on the wire and the tokens in them."""

    request: bytes
    response: bytes
    prompt_ids: list[int]
    sampled: list[int]
    answer: str
    new: int
    """Bytes of what this turn adds: what the agent says, and the answer."""


@dataclass
class Agent:
    """Writes a session in one dialect."""

    dialect: str
    streamed: bool
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def turns(self, number: int) -> Iterator[Turn]:
        system = self._text(3000)
        said: list[Any] = [system]
        ids = self._ids(750)
        for turn in range(number):
            asked, answer = self._text(1200), self._text(400)
            said.append(asked)
            ids = [*ids, *self._ids(300)]
            sampled = self._ids(100)
            new = len(asked) + len(answer) + (len(system) + len(orjson.dumps(TOOLS)) if turn == 0 else 0)
            yield Turn(self._request(said), self._response(answer, turn), list(ids), sampled, answer, new)
            said.append(answer)
            ids = [*ids, *sampled]

    def _text(self, size: int) -> str:
        """Words that repeat as a language's do: five thousand of them, some often, most seldom."""
        words: list[str] = []
        while sum(map(len, words)) + len(words) < size:
            number = int(5000 ** self.chance.random())
            words.append(random.Random(number).choice("bdfgklmnprst") + f"{number:x}ation"[: 2 + number % 7])
        return " ".join(words)[:size]

    def _ids(self, number: int) -> list[int]:
        return [self.chance.randrange(50_000) for _ in range(number)]

    def _request(self, said: list[str]) -> bytes:
        roles = [{"role": "assistant" if n % 2 == 0 else "user", "content": text} for n, text in enumerate(said)]
        wrapped = [{"type": "function", "function": tool} for tool in TOOLS]
        flat = [{"type": "function", **tool} for tool in TOOLS]
        forms: dict[str, dict[str, Any]] = {
            "chat": {"messages": [{"role": "system", "content": said[0]}, *roles[1:]], "tools": wrapped},
            "completions": {"prompt": "".join(said)},
            "responses": {"instructions": said[0], "input": roles[1:], "tools": flat},
            "messages": {"system": said[0], "messages": roles[1:], "max_tokens": 1000, "tools": flat},
        }
        return orjson.dumps({"model": "agent", **forms[self.dialect], "stream": self.streamed})

    def _response(self, answer: str, turn: int) -> bytes:
        write = getattr(self, f"_{self.dialect}")
        pieces = [answer[at : at + 4] for at in range(0, len(answer), 4)]
        name = f"{turn:032x}"
        written: bytes = write(name, answer, pieces)
        return written

    def _chat(self, name: str, answer: str, pieces: list[str]) -> bytes:
        head: dict[str, Any] = {"id": f"chatcmpl-{name}", "created": 1_790_000_000, "model": "agent"}
        if not self.streamed:
            message: dict[str, Any] = {
                "role": "assistant",
                "content": answer,
                "refusal": None,
                "tool_calls": [],
                "reasoning": None,
            }
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
            return orjson.dumps(
                {**head, "object": "chat.completion", "choices": [choice], "usage": {"total_tokens": 1}}
            )
        frames = [
            {"index": 0, "delta": {"content": piece}, "logprobs": None, "finish_reason": None, "token_ids": None}
            for piece in pieces
        ]
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        chunks = ({**head, "object": "chat.completion.chunk", "choices": [frame]} for frame in (*frames, last))
        return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"

    def _completions(self, name: str, answer: str, pieces: list[str]) -> bytes:
        head: dict[str, Any] = {
            "id": f"cmpl-{name}",
            "object": "text_completion",
            "created": 1_790_000_000,
            "model": "agent",
        }
        if not self.streamed:
            return orjson.dumps({**head, "choices": [{"index": 0, "text": answer, "finish_reason": "stop"}]})
        chunks = (
            {**head, "choices": [{"index": 0, "text": p, "logprobs": None, "finish_reason": None}]} for p in pieces
        )
        return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"

    def _responses(self, name: str, answer: str, pieces: list[str]) -> bytes:
        part: dict[str, Any] = {"type": "output_text", "text": answer, "annotations": [], "logprobs": None}
        item = {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        whole = {"id": f"resp_{name}", "object": "response", "status": "completed", "model": "agent", "output": [item]}
        if not self.streamed:
            return orjson.dumps(whole)
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0, "logprobs": []}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**whole, "output": [], "status": "in_progress"}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
            *({"type": "response.output_text.delta", **place, "delta": piece} for piece in pieces),
            {"type": "response.output_text.done", **place, "text": answer},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": whole},
        ]
        return _named(events)

    def _messages(self, name: str, answer: str, pieces: list[str]) -> bytes:
        head: dict[str, Any] = {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": "agent"}
        if not self.streamed:
            block = {"type": "text", "text": answer}
            return orjson.dumps({**head, "content": [block], "stop_reason": "end_turn", "usage": {"input_tokens": 1}})
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**head, "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
                for piece in pieces
            ),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
        return _named(events)


def _named(events: list[dict[str, Any]]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events)
