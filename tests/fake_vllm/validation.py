"""Which requests vLLM refuses, and how: see the `protocol.py` of its entrypoints, and its sampling_params.py."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_MODEL_LEN = 131_072


class Refused(Exception):
    """vLLM answers with an error. ``kind`` is its type: `Bad Request` where the request's form is wrong."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


class Unread(Exception):
    """The body is no text at all: FastAPI answers, and in its own form."""


class _Request(BaseModel):
    # Unknown fields are welcome: vLLM passes over them.
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: str | list[str] | None = None


class StreamOptions(BaseModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _OpenAI(_Request):
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stream_options: StreamOptions | None = None
    use_beam_search: bool = False
    return_token_ids: bool | None = None
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: int | None = None
    echo: bool = False


class Chat(_OpenAI):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None


class Completion(_OpenAI):
    prompt: str | list[int] | list[str] | list[list[int]] | None = None
    n: int = 1
    logprobs: int | None = None


class Responses(_Request):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    tools: list[dict[str, Any]] = []
    top_logprobs: int | None = None
    include: list[str] | None = None


class Messages(_Request):
    model: str = Field(min_length=1)
    messages: list[dict[str, Any]]
    max_tokens: int = Field(gt=0)
    metadata: dict[str, Any] | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class CountTokens(_Request):
    model: str = Field(min_length=1)
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class Input(_Request):
    """Of embeddings, pooling and classify."""

    input: str | list[int] | list[str] | list[list[int]] | None = None
    messages: list[dict[str, Any]] | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    dimensions: int | None = None


class Tokenize(_Request):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = None


class Detokenize(_Request):
    tokens: list[int]


class Adapter(BaseModel):
    lora_name: str
    lora_path: str


class AdapterName(BaseModel):
    lora_name: str


def read_json(headers: dict[bytes, bytes], body: bytes) -> Any:
    """The request's document. Raises Refused as FastAPI and vLLM do."""
    media_type = headers.get(b"content-type", b"").lower().split(b";")[0]
    if media_type != b"application/json":
        raise malformed(["Unsupported Media Type: Only 'application/json' is allowed"])
    try:
        return json.loads(body) if body else None
    except json.JSONDecodeError as error:
        found = {"type": "json_invalid", "loc": f"body.{error.pos}", "msg": "JSON decode error", "ctx": error.msg}
        raise malformed([found], f"body.{error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise Unread from error


def read(form: type[BaseModel], document: Any) -> dict[str, Any]:
    """The document, with its known fields in their types. Raises Refused where one is missing or of another type."""
    try:
        found = form.model_validate(document)
    except ValidationError as error:
        told = error.errors(include_url=False, include_input=False, include_context=False)
        # Of several types that a field may have, the name of the first is not told.
        param = ".".join(["body", *(str(part) for part in told[0]["loc"] if part != "str")])
        raise malformed([{**one, "loc": param} for one in told], param) from error
    return {**document, **{name: getattr(found, name) for name in found.model_fields_set & form.model_fields.keys()}}


_MESSAGE = "ChatCompletionDeveloperMessageParam"
"""The first of the types that a message of chat may have, which errors name."""


def check_messages(document: Any) -> None:
    """Raises Refused as vLLM does for a conversation in chat that is none."""
    if not isinstance(document, dict) or "messages" not in document:
        return
    messages = document["messages"]
    if messages is None or isinstance(messages, int | float):
        raise wrong(f"'{type(messages).__name__}' object is not iterable")
    for number, one in enumerate(messages if isinstance(messages, list) else ()):
        where = f"body.messages.{number}.{_MESSAGE}"
        if not isinstance(one, dict):
            raise malformed([{"type": "dict_type", "loc": where, "msg": "Input should be a valid dictionary"}], where)
        if "role" not in one:
            missing = {"type": "missing", "loc": f"{where}.role", "msg": "Field required"}
            raise malformed([missing], f"{where}.role")


def malformed(told: list[Any], param: str | None = None) -> Refused:
    """A request that does not have its form."""
    count = f"{len(told)} validation error" + ("s" if len(told) > 1 else "")
    lines = "".join(f"\n  {one}" for one in told[:10])
    return Refused(400, "Bad Request", count + ":" + lines.encode("utf-8", "replace").decode(), param)


def wrong(message: str, param: str | None = None, kind: str = "BadRequestError") -> Refused:
    """A request that cannot be served as it is."""
    return Refused(400, kind, message, param)


_MOST_CHOICES = 16_384
_RANGES = {
    "temperature": (0.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "min_p": (0.0, 1.0),
}


def check_sampling(request: dict[str, Any]) -> None:
    """Raises Refused where vLLM's sampling parameters do."""
    n, (limited, limit) = request.get("n"), _limit(request)
    if n is not None and n < 1:
        raise wrong(f"n must be at least 1, got {n}.")
    if n is not None and n > _MOST_CHOICES:
        raise wrong(f"n must be at most {_MOST_CHOICES}, got {n}.")
    if request.get("top_logprobs") and request.get("messages") and not request.get("logprobs"):
        raise wrong("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    for name, (least, most) in _RANGES.items():
        value = request.get(name)
        if value is not None and not (math.isfinite(value) and least <= value <= most):
            raise wrong(f"{name} must be in [{least}, {most}], got {value}.", name)
    top_p = request.get("top_p")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise wrong(f"top_p must be in (0, 1], got {top_p}.", "top_p")
    if limit is not None and limit < 1:
        raise wrong(f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    if limit is not None and limit > MAX_MODEL_LEN:
        text = f"{limited}={limit} cannot be greater than max_model_len={MAX_MODEL_LEN}."
        raise wrong(f"{text} Please request fewer output tokens.", limited)


def check_stream_options(request: dict[str, Any]) -> None:
    if request.get("stream_options") and not request.get("stream"):
        raise wrong("Stream options can only be defined when `stream=True`.", "stream_options")


def check_length(prompt: list[int]) -> None:
    """Raises Refused for a prompt that leaves no room for an answer."""
    if len(prompt) >= MAX_MODEL_LEN:
        text = (
            f"This model's maximum context length is {MAX_MODEL_LEN} tokens. However, your prompt contains at least "
            f"{MAX_MODEL_LEN + 1} input tokens, which exceeds this limit even without any output tokens."
        )
        raise wrong(text, "input_tokens")


def _limit(request: dict[str, Any]) -> tuple[str, int | None]:
    """The field that limits the answer, and its limit."""
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if request.get(name) is not None:
            return name, int(request[name])
    return "max_tokens", None
