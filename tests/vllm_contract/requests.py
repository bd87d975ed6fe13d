"""What is asked of a vLLM, the fake one and a real one alike: by name, the request whose answer has a known shape.

A body without `model` is asked of the base model. Answers are kept short, so that both end for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
COUNT = "/v1/messages/count_tokens"
JSON = {"content-type": "application/json"}

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    body: Body | bytes = b""
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


USER = {"role": "user", "content": "Name a colour."}
SCHEMA = {
    "type": "object",
    "properties": {"way": {"type": "string", "enum": ["north", "south"]}},
    "required": ["way"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look", "description": "Looks around.", "strict": True}
CHAT_TOOL = {"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
USAGE = {"stream_options": {"include_usage": True}}
RUNNING_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
HELLO = {"role": "user", "content": "Say hello."}
CALL = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"way":"north"}'}}


ENDING: Body = {"messages": [USER], "max_tokens": 80, "temperature": 0}
"""What a schema ends, long before its limit."""


def chat(**more: Any) -> Body:
    return {"messages": [USER], "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}


def text(**more: Any) -> Body:
    return {"prompt": "The sky is", "max_tokens": 16, "temperature": 0, "ignore_eos": True, **more}


def response(**more: Any) -> Body:
    return {"input": "Name a colour.", "max_output_tokens": 4, "temperature": 0, **more}


def message(**more: Any) -> Body:
    return {"messages": [USER], "max_tokens": 4, "temperature": 0, **more}


_PLAIN: dict[str, tuple[str, Body]] = {
    "chat": (CHAT, chat()),
    "chat, two choices": (CHAT, chat(n=2, temperature=1, seed=1)),
    "chat, logprobs": (CHAT, chat(logprobs=True, top_logprobs=2)),
    "chat, ids": (CHAT, chat(return_token_ids=True)),
    "chat, named tool": (
        CHAT,
        {**ENDING, "tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    ),
    "chat, required tool": (CHAT, {**ENDING, "tools": [CHAT_TOOL], "tool_choice": "required"}),
    "chat, tools and none called": (CHAT, chat(tools=[CHAT_TOOL], tool_choice="none")),
    "chat, schema": (CHAT, {**ENDING, "response_format": FORM}),
    "chat, to its end": (CHAT, {"messages": [HELLO], "temperature": 0, "max_tokens": 400}),
    "chat, a tool's result": (
        CHAT,
        chat(
            messages=[
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call-1", "content": "sea"},
            ]
        ),
    ),
    "chat, unknown fields": (CHAT, chat(nobody_knows=[1], metadata={"a": "b"}, user="me", store=True)),
    "completion": (COMPLETIONS, text()),
    "completion, two choices": (COMPLETIONS, text(n=2, temperature=1, seed=1)),
    "completion, two prompts": (COMPLETIONS, text(prompt=["One, two,", "The sky is"])),
    "completion, ids as prompt": (COMPLETIONS, text(prompt=[50, 60, 70])),
    "completion, logprobs": (COMPLETIONS, text(logprobs=2)),
    "completion, ids": (COMPLETIONS, text(return_token_ids=True, max_tokens=24)),
    "completion, echo": (COMPLETIONS, text(echo=True, logprobs=1, max_tokens=24)),
    "completion, stop string": (COMPLETIONS, text(max_tokens=64, stop=["e"])),
    "response": (RESPONSES, response()),
    "response, instructions": (RESPONSES, response(instructions="Be brief.", metadata={"a": "b"}, user="me")),
    "response, items": (RESPONSES, response(input=[{**USER, "content": [{"type": "input_text", "text": "Hi"}]}])),
    "response, to its end": (RESPONSES, {"input": [HELLO], "temperature": 0, "max_output_tokens": 400}),
    "response, named tool": (
        RESPONSES,
        response(
            max_output_tokens=64,
            tools=[{"type": "function", **FUNCTION, "parameters": SCHEMA}],
            tool_choice={"type": "function", "name": "look"},
        ),
    ),
    "response, not stored": (RESPONSES, response(store=False)),
    "message": (MESSAGES, message()),
    "message, system": (MESSAGES, message(system="Be brief.", metadata={"user_id": "me"})),
    "message, to its end": (MESSAGES, {"messages": [HELLO], "temperature": 0, "max_tokens": 400}),
    "message, parts": (MESSAGES, message(messages=[{**USER, "content": [{"type": "text", "text": "Hi"}]}])),
    "message, named tool": (
        MESSAGES,
        message(
            max_tokens=64,
            tools=[{**FUNCTION, "input_schema": SCHEMA}],
            tool_choice={"type": "tool", "name": "look"},
        ),
    ),
}
_STREAMED: dict[str, tuple[str, Body]] = {
    "chat, usage": (CHAT, chat(**USAGE)),
    "chat, running usage": (CHAT, chat(**RUNNING_USAGE)),
    "chat, two choices and usage": (CHAT, chat(n=2, temperature=1, seed=1, **USAGE)),
    "completion, usage": (COMPLETIONS, text(**USAGE)),
    "completion, running usage": (COMPLETIONS, text(**RUNNING_USAGE)),
}
_ALONE: dict[str, tuple[str, Body]] = {
    "message, stop string": (MESSAGES, message(max_tokens=64, stop_sequences=["e"])),
    "chat, stop string": (CHAT, chat(max_tokens=64, stop=["e"])),
    "completion, prompt logprobs": (COMPLETIONS, text(prompt_logprobs=0, max_tokens=1)),
    "completion, echo alone": (COMPLETIONS, text(echo=True, max_tokens=0)),
    "completion, default length": (COMPLETIONS, {"prompt": "The sky is", "temperature": 0}),
    "chat, prompt logprobs": (CHAT, chat(prompt_logprobs=0, max_tokens=1)),
    "chat, beams": (CHAT, chat(use_beam_search=True, n=2, max_tokens=3)),
}
GENERATING: dict[str, Request] = {
    **{name: Request(path, body) for name, (path, body) in (_PLAIN | _ALONE).items()},
    **{
        f"{name}, streamed": Request(path, {**body, "stream": True})
        for name, (path, body) in (_PLAIN | _STREAMED).items()
    },
}
"""What is generated, and so captured."""

_LONG = "word " * 30_000
"""More than either vLLM's context."""


def _wrong_bodies(path: str, form: Body, asked: str) -> dict[str, Body | bytes]:
    """``asked`` names the field that says what is asked."""
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    without = {key: value for key, value in form.items() if key != asked}
    return {
        "unknown model": {**form, "model": "nobody"},
        "unknown model, streamed": {**form, "model": "nobody", "stream": True},
        "no model": {**form, "model": None},
        f"no {asked}": without,
        f"a number as {asked}": {**form, asked: 7},
        f"null as {asked}": {**form, asked: None},
        f"nothing in {asked}": {**form, asked: "" if asked == "prompt" else []},
        "a word as limit": {**form, limit: "many"},
        "limit -1": {**form, limit: -1},
        "limit 0": {**form, limit: 0},
        "limit beyond the context": {**form, limit: 1_000_000},
        "hot": {**form, "temperature": 9},
        "hot, streamed": {**form, "temperature": 9, "stream": True},
        "a word as temperature": {**form, "temperature": "hot"},
        "top_p 0": {**form, "top_p": 0},
        "a word as stream": {**form, "stream": "perhaps"},
        "nothing": b"",
        "no JSON": b'{"model": ',
        "no UTF-8": b'{"model": "\xff"}',
        "a list": b"[]",
        "a number": b"7",
        "null": b"null",
        "empty": b"{}",
        "too long": {**form, asked: _LONG if asked in ("prompt", "input") else [{"role": "user", "content": _LONG}]},
    }


def _wrong(name: str, path: str, form: Body, asked: str) -> dict[str, Request]:
    """What is wrong with a request of any dialect."""
    bodies = _wrong_bodies(path, form, asked)
    if path in (CHAT, COMPLETIONS):
        bodies |= {
            "n 0": {**form, "n": 0},
            "n -1": {**form, "n": -1},
            "n too large": {**form, "n": 100_000},
            "a word as n": {**form, "n": "two"},
            "stream options and no stream": {**form, **USAGE},
            "null as n": {**form, "n": None},
        }
    if path == CHAT:
        bodies |= {
            "a text as message": {**form, "messages": ["hello"]},
            "no role": {**form, "messages": [{"content": "hello"}]},
            "a text as tools": {**form, "tools": "look"},
            "top_logprobs without logprobs": {**form, "top_logprobs": 2},
            "image": {
                **form,
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}],
                    }
                ],
            },
        }
    found = {f"{name}: {wrong}": Request(path, body) for wrong, body in bodies.items()}
    for kind, headers in (("plain text", {"content-type": "text/plain"}), ("no content type", {})):
        found[f"{name}: {kind}"] = Request(path, form, headers=headers)
    found[f"{name}: charset"] = Request(path, form, headers={"content-type": "application/json; charset=utf-8"})
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        found[f"{name}: {method}"] = Request(path, method=method, headers={})
    return found


WRONG: dict[str, Request] = {
    **_wrong("chat", CHAT, chat(), "messages"),
    **_wrong("completion", COMPLETIONS, text(), "prompt"),
    **_wrong("response", RESPONSES, response(), "input"),
    **_wrong("message", MESSAGES, message(), "messages"),
    "response: unknown before": Request(RESPONSES, response(previous_response_id="resp_nobody")),
    "response: background": Request(RESPONSES, response(background=True, store=True)),
    "response: unknown, read": Request("/v1/responses/resp_nobody", method="GET", headers={}),
    "response: unknown, cancelled": Request("/v1/responses/resp_nobody/cancel"),
    "response: odd id, read": Request("/v1/responses/nobody", method="GET", headers={}),
    "response: deleted": Request("/v1/responses/resp_nobody", method="DELETE", headers={}),
    "response: posted": Request("/v1/responses/resp_nobody"),
    "response: unknown action": Request("/v1/responses/resp_nobody/input_items", method="GET", headers={}),
    "unknown path": Request("/v1/nothing"),
    "unknown path, read": Request("/v1/nothing", method="GET", headers={}),
    "a slash behind": Request(CHAT + "/", chat()),
    "two slashes": Request("//v1/chat/completions", chat()),
    "capitals": Request("/V1/chat/completions", chat()),
    "preflight": Request(
        CHAT,
        method="OPTIONS",
        headers={
            "origin": "http://page",
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-a",
        },
    ),
    "preflight of the models": Request(
        "/v1/models", method="OPTIONS", headers={"origin": "http://page", "access-control-request-method": "GET"}
    ),
}
OTHER: dict[str, Request] = {
    "origin": Request(CHAT, chat(), headers={**JSON, "origin": "http://page"}),
    "models, posted": Request("/v1/models"),
    "models, head": Request("/v1/models", method="HEAD", headers={}),
    "health": Request("/health", method="GET", headers={}),
    "health, posted": Request("/health"),
    "ping": Request("/ping", method="GET", headers={}),
    "version": Request("/version", method="GET", headers={}),
    "load": Request("/load", method="GET", headers={}),
    "count": Request(COUNT, {"messages": [USER]}),
    "count, tools": Request(
        COUNT, {"messages": [USER], "tools": [{"name": "look", "input_schema": SCHEMA}], "system": "Hi"}
    ),
    "count: unknown model": Request(COUNT, {"messages": [USER], "model": "nobody"}),
    "count: no messages": Request(COUNT, {}),
    "count: no JSON": Request(COUNT, b"{"),
    "count: GET": Request(COUNT, method="GET", headers={}),
    "tokenize": Request("/tokenize", {"prompt": "The sky is"}),
    "tokenize, strings": Request("/tokenize", {"prompt": "The sky is", "return_token_strs": True}),
    "tokenize, conversation": Request("/tokenize", {"messages": [USER]}),
    "tokenize: unknown model": Request("/tokenize", {"prompt": "The sky is", "model": "nobody"}),
    "tokenize: nothing": Request("/tokenize", {}),
    "tokenize: GET": Request("/tokenize", method="GET", headers={}),
    "detokenize": Request("/detokenize", {"tokens": [50, 60, 70]}),
    "detokenize: nothing": Request("/detokenize", {}),
    "detokenize: words": Request("/detokenize", {"tokens": ["a"]}),
    "detokenize: unknown model": Request("/detokenize", {"tokens": [50], "model": "nobody"}),
    "embeddings": Request("/v1/embeddings", {"input": "The sky is"}),
    "embeddings, second version": Request("/v2/embed", {"texts": ["The sky is"], "input_type": "query"}),
    "pooling": Request("/pooling", {"input": "The sky is"}),
    "classify": Request("/classify", {"input": "The sky is"}),
    "score": Request("/score", {"queries": "a", "documents": ["b"]}),
    "score, first version": Request("/v1/score", {"queries": "a", "documents": ["b"]}),
    "rerank": Request("/rerank", {"query": "a", "documents": ["b"]}),
    "rerank, first version": Request("/v1/rerank", {"query": "a", "documents": ["b"]}),
    "rerank, second version": Request("/v2/rerank", {"query": "a", "documents": ["b"]}),
    "embeddings: GET": Request("/v1/embeddings", method="GET", headers={}),
    "transcriptions": Request("/v1/audio/transcriptions", {"file": "a"}),
    "translations": Request("/v1/audio/translations", {"file": "a"}),
}
"""What generates nothing for an agent."""

ALL = GENERATING | WRONG | OTHER
