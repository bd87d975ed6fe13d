"""`/v1/audio/transcriptions`: a form of parts, and a text of what was in the file."""

from __future__ import annotations

import email
import email.policy
import hashlib
from typing import Any

from tests.fake_vllm.replies import DONE, STREAM, Asked, Reply, data, document
from tests.fake_vllm.validation import malformed

_BYTES_PER_SECOND = 32_000


def read_form(content_type: bytes, body: bytes) -> dict[str, Any]:
    """The fields of a multipart body by name; a file as bytes. Raises Refused where it is none."""
    if not content_type.lower().startswith(b"multipart/form-data"):
        raise malformed(["Field required"], "body.file")
    head = b"content-type: " + content_type + b"\r\n\r\n"
    message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    found: dict[str, Any] = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        name = part.get_param("name", header="content-disposition")
        content: Any = part.get_payload(decode=True)
        found[str(name)] = content if part.get_filename() is not None else content.decode()
    if not isinstance(found.get("file"), bytes):
        raise malformed(["Field required"], "body.file")
    return {**found, "stream": found.get("stream") == "true"}


def reply(asked: Asked) -> Reply:
    sound: bytes = asked.request["file"]
    text = f"{len(sound)} bytes of sound, {hashlib.sha256(sound).hexdigest()[:8]}: déjà vu"
    if asked.request["stream"]:
        return _stream(asked, text)
    if asked.request.get("response_format") == "text":
        return Reply(200, (text.encode(),), b"text/plain; charset=utf-8")
    return document({"text": text, "usage": {"type": "duration", "seconds": len(sound) // _BYTES_PER_SECOND + 1}})


def _stream(asked: Asked, text: str) -> Reply:
    head = {
        "id": asked.id("trsc-"),
        "object": "transcription.chunk",
        "created": asked.created,
        "model": asked.name,
    }
    words = text.split(" ")
    frames = [
        data(
            {
                **head,
                "choices": [
                    {
                        "delta": {"content": word if number == 0 else f" {word}"},
                        "finish_reason": "stop" if number == len(words) - 1 else None,
                        "stop_reason": None,
                    }
                ],
            }
        )
        for number, word in enumerate(words)
    ]
    return Reply(200, (*frames, DONE), STREAM)
