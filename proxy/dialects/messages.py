"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proxy.dialects.documents import Document, count, events, field, objects, parse
from proxy.dialects.normal import Answer, Pieces, content, function_call, function_tool, joined, text
from proxy.dialects.types import Continued, Issued
from storage.calls import Message, Reading

_NOISE = "x-anthropic-billing-header"
"""Claude Code sends such a text with a digest of the request; vLLM shows it to no model."""

_JOINED = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""By the type of a delta: its field, whose text continues what came before. The other deltas carry signatures."""


class Messages:
    name = "messages"
    path = "/v1/messages"
    last_frames: tuple[bytes, ...] = (b"event: message_stop", b"event: error")
    error_frames: tuple[bytes, ...] = (b"event: error",)

    def asked(self, document: Any) -> Reading:
        tools = tuple(_tool(tool) for tool in field(document, "tools", list) or ())
        return Reading(tuple(_conversation(document)), (), tools, token_limit=count(document, "max_tokens"))

    def read(self, request: bytes, response: bytes, streamed: bool) -> Reading:
        blocks = _blocks(response, streamed)
        return replace(self.asked(parse(request)), output=() if blocks is None else (_answer(blocks),))

    def issued(self, response: bytes, streamed: bool) -> Issued:
        if b'"tool_use"' not in response:
            return Issued()
        uses = (block for block in _blocks(response, streamed) or [] if block.get("type") == "tool_use")
        return Issued(None, tuple(use["id"] for use in uses if isinstance(use.get("id"), str)))

    def continued(self, document: Any) -> Continued:
        blocks = (block for message in objects(document, "messages") for block in objects(message, "content"))
        return Continued(None, tuple(b["tool_use_id"] for b in blocks if isinstance(b.get("tool_use_id"), str)))


def _tool(tool: Any) -> Any:
    """Tools of the client in chat's form; those of Anthropic's servers as they came."""
    return function_tool(tool, "input_schema") if isinstance(tool, dict) and "input_schema" in tool else tool


def _conversation(document: Any) -> Iterator[Message]:
    system = document.get("system") if isinstance(document, dict) else None
    if system:
        yield from _said("system", system)
    for message in objects(document, "messages"):
        yield from _said(message.get("role"), message.get("content"))


def _said(role: Any, said: Any) -> Iterator[Message]:
    """The chat messages in one of Anthropic's: results of tools become messages of their own."""
    blocks = [text(said)] if isinstance(said, str) else said
    if not isinstance(blocks, list):
        return
    if role == "assistant":
        yield _answer(blocks)
        return
    parts: list[Any] = []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            if parts:
                yield {"role": role, "content": content(parts)}
                parts = []
            yield _result(block)
        elif not _is_noise(block):
            parts.append(_part(block))
    if parts:
        yield {"role": role, "content": content(parts)}


def _is_noise(block: Any) -> bool:
    return (field(block, "text", str) or "").startswith(_NOISE)


def _result(block: Document) -> Message:
    inner = block.get("content")
    shown = content([_part(part) for part in inner]) if isinstance(inner, list) else inner or ""
    message: Message = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": shown}
    return message | {"is_error": True} if block.get("is_error") is True else message


def _part(block: Any) -> Any:
    """A block as a part of a chat message: images become `image_url`, what has no counterpart stands as it came."""
    source = field(block, "source", dict)
    if source is None or block.get("type") != "image":
        return block
    url, kind, data = (field(source, name, str) for name in ("url", "media_type", "data"))
    if url is None and data is None:
        return block
    return {"type": "image_url", "image_url": {"url": url or f"data:{kind};base64,{data}"}}


def _answer(blocks: list[Any]) -> Message:
    answer = Answer()
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "thinking":
            answer.reasoning.append(field(block, "thinking", str) or "")
        elif kind == "tool_use":
            answer.calls.append(function_call(block.get("id"), block.get("name"), block.get("input")))
        else:
            answer.parts.append(_part(block))
    return answer.message()


def _blocks(response: bytes, streamed: bool) -> list[Document] | None:
    """The content blocks of the answer; None where there is no answer."""
    if streamed:
        return _streamed(response)
    document = parse(response)
    return objects(document, "content") if field(document, "content", list) is not None else None


def _streamed(response: bytes) -> list[Document] | None:
    """The blocks that a client puts together from the frames."""
    blocks: list[Document] = []
    open_blocks: dict[int, Document] = {}
    ended = False
    for event in events(response):
        kind, index = event.get("type"), field(event, "index", int) or 0
        ended = ended or kind == "message_stop"
        if kind == "content_block_start":
            open_blocks[index] = dict(field(event, "content_block", dict) or {})
            blocks.append(open_blocks[index])
        elif kind == "content_block_delta" and index in open_blocks:
            _add(open_blocks[index], field(event, "delta", dict) or {})
    return [_closed(block) for block in blocks] if ended or blocks else None


def _add(block: Document, delta: Document) -> None:
    name = _JOINED.get(field(delta, "type", str) or "")
    piece = field(delta, name, str) if name else None
    if name and piece:
        if not isinstance(block.get(name), Pieces):
            block[name] = Pieces([field(block, name, str) or ""])
        block[name].append(piece)


def _closed(block: Document) -> Document:
    """The block with its texts joined, and a tool's input as the object that its JSON holds, if it came whole."""
    closed: Document = joined(block)
    written = field(closed, "partial_json", str)
    if written:
        found = parse(written.encode("utf-8", "surrogatepass"))
        closed["input"] = found if isinstance(found, dict) else written
    return closed
