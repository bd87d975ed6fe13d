"""A small stand-in for vLLM's inside: the classes that the plugin wraps, and an application over them."""

# ruff: noqa: ARG002 - the signatures are vLLM's, and the plugin looks at them

import copy
import json
import sys
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SECRET = "s3cret"
NONCE = "0123456789abcdef" * 2


@dataclass
class Params:
    """vLLM's SamplingParams, as far as the plugin reads them; the defaults are vLLM's."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 3
    min_tokens: int = 0
    logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    logit_bias: dict[int, float] | None = None
    structured_outputs: Any = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = field(default_factory=list)
    thinking_token_budget: int | None = None
    extra_args: dict[str, Any] | None = None
    watermarking: bool | None = None
    trace_decode_token_ids: list[int] | None = None
    output_kind: Any = field(default_factory=lambda: SimpleNamespace(name="DELTA"))

    def clone(self) -> "Params":
        return copy.copy(self)


class Engine:
    """vLLM's AsyncLLM: token k of choice i of a prompt p is 100·p[0] + 10·i + k, its logprob −0.5·(k + 1)."""

    closed = 0
    seen: Params | None = None
    model_config = SimpleNamespace(logprobs_mode="processed_logprobs", logits_processors=None)

    async def generate(self, prompt: Any, sampling_params: Params, request_id: str) -> AsyncGenerator[Any, None]:
        Engine.seen = sampling_params
        live: dict[int, tuple[list[int], list[Any]]] = {i: ([], []) for i in range(sampling_params.n)}
        count = sampling_params.max_tokens or 0
        kind = sampling_params.output_kind.name
        try:
            for k in range(count):
                if request_id == "fails" and k == 1:
                    raise RuntimeError("the engine fell over")
                parts = []
                for i, (ids, logprobs) in live.items():
                    token = 100 * prompt["prompt_token_ids"][0] + 10 * i + k
                    if kind == "DELTA":
                        ids.clear()
                        logprobs.clear()
                    ids.append(token)
                    if sampling_params.logprobs is not None:
                        logprobs.append({token: SimpleNamespace(logprob=-0.5 * (k + 1))})
                    parts.append(
                        SimpleNamespace(
                            index=i,
                            token_ids=ids,
                            logprobs=logprobs if sampling_params.logprobs is not None else None,
                            finish_reason="length" if k == count - 1 else None,
                            stop_reason=None,
                        )
                    )
                if kind != "FINAL_ONLY" or k == count - 1:
                    yield SimpleNamespace(
                        prompt_token_ids=prompt["prompt_token_ids"], outputs=parts, finished=k == count - 1
                    )
        finally:
            Engine.closed += 1


@dataclass
class Request:
    model: str | None = None
    use_beam_search: bool = False
    background: bool = False
    prompt_embeds: Any = None
    echo: bool = False
    max_tokens: int | None = 3

    def model_copy(self, update: dict[str, Any]) -> "Request":
        return Request(**{**self.__dict__, **update})


class Models:
    def __init__(self) -> None:
        self.lora_requests = {"policy@1": "the adapter policy@1"}

    def is_base_model(self, model_name: str) -> bool:
        return model_name == "base"

    def model_name(self, lora_request: Any = None) -> str:
        return "policy@1" if lora_request else "base"


class NotFoundError(Exception):
    pass


class Serving:
    """vLLM's BaseServing."""

    skip_validation = False

    def __init__(self) -> None:
        self.models = Models()

    def create_error_response(
        self, message: str, err_type: str = "", status_code: int = 400, param: str | None = None
    ) -> tuple[int, str]:
        return int(status_code), message

    async def _check_model(self, request: Request) -> tuple[int, str] | None:
        known = not request.model or self.models.is_base_model(request.model) or self.skip_validation
        if known or request.model in self.models.lora_requests:
            return None
        return self.create_error_response(f"The model `{request.model}` does not exist.", status_code=404)

    def _maybe_get_adapters(self, request: Request, supports_default_mm_loras: bool = False) -> str | None:
        return self.models.lora_requests.get(request.model or "")


class Application:
    """An ASGI application that serves as vLLM does: JSON with Content-Length, or an event stream."""

    def __init__(self) -> None:
        self.serving, self.engine = Serving(), Engine()
        self.requests: list[dict[str, Any]] = []
        """The scopes that reached vLLM."""
        self.request = Request("gpt-4o")
        self.prompts: list[dict[str, Any]] = [{"type": "token", "prompt_token_ids": [1, 2]}]
        self.params = Params()
        self.stream = False
        self.request_id = "works"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests.append(scope)
        if scope["type"] != "http":
            return
        error = await self.serving._check_model(self.request)
        if error:
            await self.plain(send, error[0], {"error": error[1]})
            return
        adapter = self.serving._maybe_get_adapters(self.request)
        model = self.serving.models.model_name(adapter)
        outputs = [self.engine.generate(prompt, self.params, self.request_id) for prompt in self.prompts]
        if self.stream:
            await self.events(send, outputs, {"model": model, "by": adapter})
            return
        parts = [[part.token_ids for output in [o async for o in one] for part in output.outputs] for one in outputs]
        await self.plain(send, 200, {"model": model, "by": adapter, "ids": parts})

    async def plain(self, send: Any, status: int, content: Any) -> None:
        body = json.dumps(content, separators=(",", ":")).encode()
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def events(self, send: Any, outputs: list[Any], head: dict[str, Any]) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            for number, one in enumerate(outputs):
                async for output in one:
                    for part in output.outputs:
                        chunk = {**head, "ids": part.token_ids, "finish": part.finish_reason, "prompt": number}
                        body = f"data: {json.dumps(chunk)}\n\n".encode()
                        await send({"type": "http.response.body", "body": body, "more_body": True})
        except RuntimeError as error:
            body = f'data: {{"error": "{error}"}}\n\n'.encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def fake_modules() -> dict[str, ModuleType]:
    """vLLM's modules by name, with fresh classes: the plugin wraps their functions for good."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.0.fake"},
        "vllm.exceptions": {"VLLMNotFoundError": NotFoundError},
        "vllm.sampling_params": {"SamplingParams": Params},
        "vllm.v1.engine.async_llm": {"AsyncLLM": Engine},
        "vllm.entrypoints.serve.engine.serving": {"BaseServing": Serving},
        "vllm.entrypoints.openai.models.serving": {"OpenAIServingModels": Models},
    }
    modules = {}
    for name, members in contents.items():
        modules[name] = ModuleType(name)
        modules[name].__dict__.update(members)
    return modules


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    """The application, and vLLM's modules in place of the real ones. The wrappers come off again."""
    for name, module in fake_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("SLIPSTREAM_PLUGIN_SECRET", SECRET)
    monkeypatch.delenv("VLLM_USE_RUST_FRONTEND", raising=False)
    plain = {owner: dict(owner.__dict__) for owner in (Engine, Serving, Models)}
    Engine.closed, Engine.seen = 0, None
    yield Application()
    for owner, members in plain.items():
        for name in set(owner.__dict__) - set(members):
            delattr(owner, name)
        for name in ("generate", "_check_model", "_maybe_get_adapters", "model_name"):
            if name in members:
                setattr(owner, name, members[name])
