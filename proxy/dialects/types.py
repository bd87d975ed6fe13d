"""What the proxy must know of a wire form in which an agent can call a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from storage.calls import Reading


@dataclass(frozen=True, slots=True)
class Issued:
    """The names that a response gave away: a later request that bears one of them continues this call."""

    response_id: str | None = None
    """None in dialects whose requests never name an earlier response."""
    tool_call_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Continued:
    """The names in a request that an earlier response gave away."""

    previous_response_id: str | None = None
    tool_call_ids: tuple[str, ...] = ()
    """The tool calls whose results the request carries, in its order: the newest last."""


class Dialect(Protocol):
    """Everything else of a call passes as bytes. No method raises, whatever the bytes are."""

    name: str
    path: str
    last_frames: tuple[bytes, ...]
    """In a stream: the beginnings of lines that stand in the frame after which a client stops reading."""
    error_frames: tuple[bytes, ...]
    """In a stream: the beginnings of lines by which vLLM breaks off. One that ends a stream is a last frame, too."""

    def asked(self, document: Any) -> Reading:
        """What can be read in a request alone; ``document`` is its parsed body."""
        ...

    def read(self, request: bytes, response: bytes, streamed: bool) -> Reading:
        """What can be read in a call; what cannot be read is left out."""
        ...

    def issued(self, response: bytes, streamed: bool) -> Issued:
        """The names that a response gave away."""
        ...

    def continued(self, document: Any) -> Continued:
        """The names of earlier responses in a request; ``document`` is its parsed body."""
        ...
