"""The wire forms in which an agent can call a model; one object each."""

from __future__ import annotations

from proxy.dialects.chat import ChatCompletions
from proxy.dialects.completions import Completions
from proxy.dialects.messages import Messages
from proxy.dialects.responses import Responses
from proxy.dialects.types import Continued, Dialect, Issued
from storage.calls import Reading
from storage.types import CallStart

__all__ = ["BY_NAME", "DIALECTS", "LONGEST_FRAME", "OTHER", "Continued", "Dialect", "Issued", "is_stream", "read_call"]

_ALL: tuple[Dialect, ...] = (ChatCompletions(), Completions(), Responses(), Messages())

DIALECTS: dict[str, Dialect] = {dialect.path: dialect for dialect in _ALL}
"""By path."""

LONGEST_FRAME = max(len(frame) for dialect in _ALL for frame in (*dialect.last_frames, *dialect.error_frames))
"""Bytes that must be seen together to recognise how a stream ends."""

_BLANKS = 64
"""Of the bytes that may stand before a document."""

BY_NAME: dict[str, Dialect] = {dialect.name: dialect for dialect in _ALL}


OTHER = "other"
"""In place of a dialect's name: a call in which no tokens are sampled."""


def read_call(start: CallStart, request: bytes, response: bytes) -> Reading:
    """The reading of a recorded call, by its own dialect; of one without there is nothing to read."""
    if start.dialect == OTHER:
        return Reading((), ())
    return BY_NAME[start.dialect].read(request, response, is_stream(response))


def is_stream(response: bytes) -> bool:
    """Whether a response is an event stream: the request does not tell, since vLLM takes `"stream": 1`, too."""
    return not response[:_BLANKS].lstrip().startswith(b"{")
