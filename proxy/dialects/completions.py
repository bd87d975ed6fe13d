"""OpenAI's completions: a prompt and what follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.dialects.documents import count, events, field, objects, parse
from proxy.dialects.types import Continued, Issued
from storage.calls import Message, Reading
from storage.text import dumps

_DEFAULT_TOKENS = 16
"""What the API says of an answer whose request says nothing."""


class Completions:
    name = "completions"
    path = "/v1/completions"
    last_frames: tuple[bytes, ...] = (b"data: [DONE]",)
    error_frames: tuple[bytes, ...] = (b'data: {"error"',)  # a [DONE] follows

    def asked(self, document: Any) -> Reading:
        """Each prompt as a message of the user. An agent that goes on sends one text again, lengthened."""
        prompts = [_text(prompt) for prompt in _prompts(document)]
        limit = count(document, "max_tokens")
        if limit is None and not (isinstance(document, dict) and "max_tokens" in document):
            limit = _DEFAULT_TOKENS
        messages = tuple({"role": "user", "content": text} for text in prompts)
        return Reading(messages, (), grows=len(prompts) == 1, token_limit=limit)

    def read(self, request: bytes, response: bytes, streamed: bool) -> Reading:
        """Each choice is an answer."""
        document = parse(request)
        asked = self.asked(document)
        texts = _texts(response, streamed)
        prompts = [str(message["content"]) for message in asked.messages]
        if field(document, "echo", bool) and prompts:
            for index, text in texts.items():
                # All choices of the first prompt come first, then those of the second.
                prompt = prompts[min(index * len(prompts) // len(texts), len(prompts) - 1)] if index >= 0 else ""
                texts[index] = text.removeprefix(prompt)
        answers: tuple[Message, ...] = tuple({"role": "assistant", "content": texts[index]} for index in sorted(texts))
        return replace(asked, output=answers)

    def issued(self, response: bytes, streamed: bool) -> Issued:  # noqa: ARG002 - the protocol's
        """Nothing: a completion's prompt names no earlier one."""
        return Issued()

    def continued(self, document: Any) -> Continued:  # noqa: ARG002 - the protocol's
        return Continued()


def _prompts(document: Any) -> list[Any]:
    """The prompts: texts, or lists of token ids."""
    prompt = document.get("prompt") if isinstance(document, dict) else None
    if not isinstance(prompt, list):
        return [] if prompt is None else [prompt]
    return [prompt] if prompt and isinstance(prompt[0], int) else prompt


def _text(prompt: Any) -> str:
    """A prompt as a person reads it: ids are shown as the numbers that they are, each with a space behind it."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return f"token ids: {''.join(f'{token} ' for token in prompt)}"
    return dumps(prompt).decode()


def _texts(response: bytes, streamed: bool) -> dict[int, str]:
    """The text of each choice, by its index."""
    pieces: dict[int, list[str]] = {}
    for document in events(response) if streamed else (parse(response),):
        for choice in objects(document, "choices"):
            pieces.setdefault(field(choice, "index", int) or 0, []).append(field(choice, "text", str) or "")
    return {index: "".join(parts) for index, parts in pieces.items()}
