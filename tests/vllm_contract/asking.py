"""Asking a vLLM, the fake one or a real one, and what came back taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.captures import unpacked
from tests.vllm_contract import shapes
from tests.vllm_contract.requests import JSON, Request

NONCE = "0123456789abcdef" * 2
_HEADER = "x-slipstream"
_SECONDS = 300.0
_FRAME = b"\x1e" + NONCE.encode() + b" "


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; a capture stands apart."""

    status: int
    headers: Mapping[str, str]
    before: bytes
    """What came ahead of the capture."""
    capture: dict[str, Any] | None
    frame: int
    """The capture's bytes, with its head."""
    after: bytes

    @property
    def body(self) -> bytes:
        return self.before + self.after

    @property
    def mark(self) -> str | None:
        """The plugin's response header."""
        return self.headers.get(_HEADER)

    def json(self) -> Any:
        return json.loads(self.body)

    def choices(self, index: int) -> list[Any]:
        """The pieces of one choice, of a plain body or of a stream."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        parts = [json.loads(line) for line in lines if line != "[DONE]"] or [self.json()]
        return [choice for part in parts for choice in part["choices"] if choice["index"] == index]

    def error(self) -> tuple[int, str, str]:
        """Status, type and message of an error."""
        told = self.json()["error"]
        return self.status, told["type"], told["message"]

    def shape(self) -> dict[str, Any]:
        """Without what the plugin adds."""
        headers = {name: value for name, value in self.headers.items() if name != _HEADER}
        if "content-length" in headers:
            headers["content-length"] = str(int(headers["content-length"]) - self.frame)
        return shapes.answer(self.status, headers, self.body)

    def captured(self) -> dict[str, Any]:
        """What the capture holds, and how many kinds of frames of a stream stand behind it."""
        assert self.capture is not None
        found: dict[str, Any] = {"payload": shapes.shape(self.capture)}
        if self.headers["content-type"].startswith("text/event-stream"):
            kinds, behind = (shapes.unique(shapes.frames(stream)) for stream in (self.body, self.after))
            assert behind == kinds[-len(behind) :]
            found["kinds behind"] = len(behind)
        return found


@dataclass(frozen=True, slots=True)
class Vllm:
    """A vLLM with the plugin, and an adapter that it may load."""

    url: str
    secret: str
    base: str
    adapter: Path
    client: httpx.Client

    @classmethod
    def at(cls, url: str, secret: str, base: str, adapter: Path) -> Vllm:
        return cls(url, secret, base, adapter, httpx.Client(base_url=url, timeout=_SECONDS))

    def marked(self, model: str, exploration: str | None = None) -> dict[str, str]:
        """The proxy's mark."""
        fields = [self.secret, NONCE, quote(model, safe=""), *([exploration] if exploration else [])]
        return {_HEADER: " ".join(fields)}

    def ask(self, request: Request, mark: Mapping[str, str] | None = None) -> Answer:
        """The base model's answer, where the request names no model."""
        body = request.body
        if isinstance(body, dict):
            named = {"model": self.base, **body}
            if named["model"] is None:
                del named["model"]
            body = json.dumps(named).encode()
        headers = {**request.headers, **(mark or {})}
        response = self.client.request(request.method, self.url + request.path, content=body, headers=headers)
        return _taken_apart(response)

    def post(self, path: str, body: dict[str, Any], mark: Mapping[str, str] | None = None) -> Answer:
        return self.ask(Request(path, body, headers=JSON), mark)

    def get(self, path: str, mark: Mapping[str, str] | None = None) -> Answer:
        return self.ask(Request(path, method="GET", headers={}), mark)


def _taken_apart(response: httpx.Response) -> Answer:
    before, found, rest = response.content.partition(_FRAME)
    if not found:
        return Answer(response.status_code, response.headers, before, None, 0, b"")
    length, _, rest = rest.partition(b"\n")
    payload, after = rest[: int(length)], rest[int(length) :]
    frame = len(response.content) - len(before) - len(after)
    return Answer(response.status_code, response.headers, before, unpacked(payload), frame, after)
