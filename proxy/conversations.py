"""Digests of conversations: two calls are of one conversation when a digest of what they share is the same.

A digest is taken behind every answer, each from the one before, so that a long conversation costs its length once.
Only digests are kept, whatever the conversations hold.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import orjson

from storage.calls import Message
from storage.text import dumps
from storage.types import Owner

_DIGEST_BYTES = 16
_LENGTHS = 256
"""Lengths of texts that are remembered: the newest."""
_LONG = 2**16
"""Characters of a text that is not digested itself."""
_THOUGHT = "</think>"
_MARK = "cache_control"


class Conversation:
    """A call's messages, as digests."""

    def __init__(self, owner: Owner, messages: Iterable[Message], after: str | None = None) -> None:
        """``after``: the response that the messages follow, where the request names it in place of a history."""
        self._state = _digest(owner, after)
        self.answers: list[bytes] = []
        """The digest behind each answer that the messages hold, the first answer first."""
        self._say(messages)

    def going_on(self, messages: Iterable[Message]) -> Conversation:
        """The conversation of which this one is the beginning."""
        longer = copy.copy(self)
        longer._state, longer.answers = self._state.copy(), self.answers.copy()
        longer._say(messages)
        return longer

    def _say(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._state.update(_canonical(message))
            if message.get("role") == "assistant":
                self.answers.append(self._state.digest())

    def then(self, answer: Message) -> bytes | None:
        """The digest behind ``answer``, were it the next message; None: there is nothing to go on from."""
        state = self._state.copy()
        state.update(_canonical(answer))
        return state.digest()


class GrowingText:
    """A call's text, which later calls lengthen. Where answers end in it is not to be seen, but at known lengths."""

    def __init__(self, owner: Owner, text: str, lengths: OrderedDict[int, None]) -> None:
        """``lengths`` of earlier texts with their answers, in bytes; those of later ones are added to it."""
        self._text = text.encode("utf-8", "surrogatepass")
        self._state = _digest(owner, "text")
        self._lengths = lengths
        self.answers: list[bytes] = []
        done = 0
        for length in sorted(length for length in lengths if length <= len(self._text)):
            self._state.update(self._text[done:length])
            self.answers.append(self._state.digest())
            done = length
        self._state.update(self._text[done:])

    def then(self, answer: Message) -> bytes | None:
        more = str(answer.get("content") or "").encode("utf-8", "surrogatepass")
        if not more:
            return None
        state = self._state.copy()
        state.update(more)
        length = len(self._text) + len(more)
        self._lengths[length] = None
        self._lengths.move_to_end(length)
        if len(self._lengths) > _LENGTHS:
            self._lengths.popitem(last=False)
        return state.digest()


def named(owner: Owner, kind: str, name: str) -> bytes:
    """The digest of a name that vLLM gave away, such as a response's id."""
    return _digest(owner, kind, name).digest()


def brief(value: Any, depth: int) -> Any:
    """``value`` with its long texts (pictures, files) replaced by what this process alone knows them by.

    To write and to digest them anew would take the event loop a hundred milliseconds for fifty megabytes; Python's own
    hash, keyed by chance, takes ten, and only once for a text, however often it is asked for. What lies deeper than
    ``depth`` stands as it is.
    """
    if isinstance(value, str):
        return value if len(value) < _LONG else f"{len(value)} {hash(value)}"
    if depth and isinstance(value, dict):
        return {name: brief(inner, depth - 1) for name, inner in value.items()}
    if depth and isinstance(value, list | tuple):
        return [brief(inner, depth - 1) for inner in value]
    return value


def _digest(*what: str | None) -> hashlib.blake2b:
    return hashlib.blake2b(dumps(what) + b"\n", digest_size=_DIGEST_BYTES)


def _canonical(message: Message) -> bytes:
    """A message without what clients leave out, add or write otherwise when they carry it from call to call."""
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        return dumps(["assistant", *_answer(message)]) + b"\n"
    if len(message) == 2 and isinstance(content, str) and isinstance(role, str):
        return dumps([role, brief(content, 0)]) + b"\n"
    kept = {name: value for name, value in message.items() if value not in (None, []) and name != _MARK}
    return dumps({**kept, "content": brief(_content(content), 0)}, sort_keys=True) + b"\n"


def _answer(message: Message) -> tuple[Any, list[Any]]:
    """What was said and called. Thoughts are not repeated by most clients, and arguments are often written anew."""
    calls = message.get("tool_calls")
    called = [_call(call) for call in calls] if isinstance(calls, list) else []
    said = _content(message.get("content"))
    if isinstance(said, str):
        said = said.rpartition(_THOUGHT)[2].strip() or message.get("refusal") or message.get("function_call") or ""
    return brief(said, 0), called


def _content(content: Any) -> Any:
    """Text where there is nothing but text; cache marks say nothing."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    return "\n".join(parts) if all(isinstance(part, str) for part in parts) else parts


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    return {name: brief(value, 2) for name, value in sorted(part.items()) if name != _MARK}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return [call.get("id"), function.get("name"), _arguments(function.get("arguments"))]


def _arguments(arguments: Any) -> Any:
    """Arguments as the value that they stand for, however they are spaced and ordered."""
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return arguments.strip()
    return dumps(arguments, sort_keys=True).decode()
