"""Calls to vLLM with the mark of Slipstream's proxy, and what the plugin adds to their responses."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from tests.captures import unpacked

NONCE = "0123456789abcdef" * 2
TIMEOUT = 600.0

Body = dict[str, Any]


class Server(Protocol):
    base_url: str
    secret: str
    model: str
    adapters: dict[int, Path]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    version: str | None
    """The plugin's response header."""
    before: bytes
    """What came ahead of the capture."""
    capture: dict[str, Any] | None
    after: bytes

    @property
    def body(self) -> bytes:
        return self.before + self.after

    def json(self) -> Any:
        return json.loads(self.body)

    def parts(self) -> list[Any]:
        """The chunks of a stream, or the one object of a plain body."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"] or [self.json()]

    def choices(self, index: int) -> list[Any]:
        """The pieces of one choice."""
        return [choice for part in self.parts() for choice in part["choices"] if choice["index"] == index]


def parse(response: httpx.Response) -> Answer:
    raw = response.content
    before, mark, rest = raw.partition(b"\x1e" + NONCE.encode() + b" ")
    version = response.headers.get("x-slipstream")
    if not mark:
        return Answer(response.status_code, version, raw, None, b"")
    length, _, rest = rest.partition(b"\n")
    payload, after = rest[: int(length)], rest[int(length) :]
    assert b"\x1e" not in after, "one capture per response"
    if version != "1 0":
        frame = len(raw) - len(before) - len(after)
        assert (version, before) == (f"1 {frame}", b""), "a plain body begins with the capture of the told length"
    return Answer(response.status_code, version, before, unpacked(payload), after)


def mark_of(server: Server, model: str) -> dict[str, str]:
    return {"x-slipstream": f"{server.secret} {NONCE} {quote(model, safe='')}"}


async def post(server: Server, path: str, body: Body, headers: dict[str, str] | None = None) -> Answer:
    async with httpx.AsyncClient(base_url=server.base_url, timeout=TIMEOUT) as client:
        return parse(await client.post(path, json=body, headers=headers))


async def captured(server: Server, path: str, body: Body, model: str) -> tuple[Answer, dict[str, Any]]:
    answer = await post(server, path, body, mark_of(server, model))
    assert answer.status == 200, answer.body
    assert answer.capture is not None
    assert answer.capture["v"] == 3
    return answer, answer.capture


def chat(question: str, **more: Any) -> Body:
    return {"model": "agent", "messages": [{"role": "user", "content": question}], "max_tokens": 8, **more}
