"""The wire forms in which an agent can call a model; one object each."""

from __future__ import annotations

from typing import Protocol

from proxy.dialects.chat import ChatCompletions
from storage.calls import Reading
from storage.types import CallStart


class Dialect(Protocol):
    """What the proxy must know of a wire form. Everything else of a call passes as bytes."""

    name: str
    path: str
    last_frame: bytes
    """In a stream: the frame after which a client stops reading."""
    error_frame: bytes
    """In a stream: the beginning of the frame by which vLLM breaks off."""

    def read(self, request: bytes, response: bytes, streamed: bool) -> Reading:
        """What can be read in a call. Never raises: what cannot be read is left out."""
        ...


DIALECTS: dict[str, Dialect] = {dialect.path: dialect for dialect in (ChatCompletions(),)}
_BY_NAME = {dialect.name: dialect for dialect in DIALECTS.values()}


def read_call(start: CallStart, request: bytes, response: bytes) -> Reading:
    """The reading of a recorded call, by its own dialect."""
    return _BY_NAME[start.dialect].read(request, response, start.streamed)
