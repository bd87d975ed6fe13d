"""The capture frame that the plugin puts into a response, and the knife that cuts it out.

``0x1E``, the call's nonce, a space, the payload's length in decimal, a newline, the payload. The nonce is chance of
128 bits and made for one call, so no text that a model writes can be taken for a frame.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import ClassVar
from urllib.parse import quote

HEADER = "x-slipstream"
PROTOCOL = "1"
AS_THE_BODY_SAYS = "-"
_FIRST = b"\x1e"
_MAX_HEAD = 64


def new_nonce() -> str:
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class Exploration:
    """The sampling of an explored call, whatever its client asked for."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    """A threshold would cut the policy's distribution, and nothing sampled under one is trained."""

    def __str__(self) -> str:
        return ",".join(f"{name}={value!r}" for name, value in asdict(self).items())


def request_header(secret: str, nonce: str, model: str | None, exploration: Exploration | None = None) -> str:
    """The value of `HEADER`; ``model`` is the vLLM model that answers, None for "as the body says, uncaptured".

    ``exploration`` None: sampled as the client asked.
    """
    fields = [secret, nonce, AS_THE_BODY_SAYS if model is None else quote(model, safe="")]
    return " ".join(fields if exploration is None else [*fields, str(exploration)])


def frame_length(header: str | None) -> int | None:
    """The bytes of the frame at the head of a plain response; None when vLLM runs without this plugin."""
    if header is None:
        return None
    protocol, _, length = header.partition(" ")
    return int(length) if protocol == PROTOCOL and length.isdecimal() else None


@dataclass(slots=True)
class Cutter:
    """Feed it a response's bytes as they come; it gives back those for the client and keeps the capture."""

    resizes: ClassVar[bool] = False
    """vLLM's middleware says by how much a plain response is shorter."""
    nonce: str
    capture: bytes | None = None
    _held: bytes = b""
    _payload: list[bytes] = field(default_factory=list)
    _missing: int = 0

    def feed(self, data: bytes) -> bytes:
        """The client's bytes among ``data``. At most a beginning of a frame is held back."""
        if self.capture is not None:
            return data
        if self._missing:
            return self._take(data)
        if self._held:
            data, self._held = self._held + data, b""
        at = data.find(_FIRST)
        while at >= 0:
            marker = _FIRST + self.nonce.encode() + b" "
            head = data[at : at + len(marker)]
            if head == marker[: len(head)]:
                return data[:at] + self._open(data[at:], len(marker))
            at = data.find(_FIRST, at + 1)
        return data

    def end(self) -> bytes:
        """The stream is over: what was held back was no frame."""
        held, self._held = self._held, b""
        return held

    def _open(self, data: bytes, marker: int) -> bytes:
        line = data.find(b"\n", 0, _MAX_HEAD)
        if line < 0 and len(data) < _MAX_HEAD:
            self._held = data
            return b""
        length = data[marker:line]
        if line < 0 or not length.isdigit():
            raise ValueError("a capture frame has no length")
        self._missing = int(length)
        return self._take(data[line + 1 :])

    def _take(self, data: bytes) -> bytes:
        self._payload.append(data[: self._missing])
        rest = data[self._missing :]
        self._missing -= len(self._payload[-1])
        if not self._missing:
            self.capture = b"".join(self._payload)
        return rest
