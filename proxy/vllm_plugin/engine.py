"""The places where the plugin reaches into vLLM's API server.

Four functions are wrapped, all of them at once or none: the engine's `generate` (capture) and three of the
serving layer (which adapter answers, and what `model` the response shows). Each wrapper asks a context
variable for the call that it works for, and does nothing where there is none. vLLM hands a request on
through tasks, which inherit the variable.
"""

import importlib
import inspect
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

from .recording import PARAMETERS, Call, Generation
from .settings import PluginError

CURRENT: ContextVar[Call | None] = ContextVar("slipstream_call", default=None)

_MARK = "wrapped_by_slipstream"

_WRAPPED = (
    ("vllm.v1.engine.async_llm", "AsyncLLM", "generate", ("prompt", "sampling_params", "request_id")),
    ("vllm.entrypoints.serve.engine.serving", "BaseServing", "_check_model", ("request",)),
    (
        "vllm.entrypoints.serve.engine.serving",
        "BaseServing",
        "_maybe_get_adapters",
        ("request", "supports_default_mm_loras"),
    ),
    ("vllm.entrypoints.openai.models.serving", "OpenAIServingModels", "model_name", ("lora_request",)),
)
"""Module, class, function, and the parameters that the wrapper relies on."""

_NEEDED = (
    ("vllm.entrypoints.serve.engine.serving", "BaseServing", "create_error_response", ("message", "err_type")),
    ("vllm.entrypoints.openai.models.serving", "OpenAIServingModels", "is_base_model", ("model_name",)),
)
"""What the wrappers call."""


def install() -> None:
    """Wraps vLLM's functions. May be called again.

    Raises:
        PluginError: this version of vLLM lacks one of them, or something that they read; then none is wrapped.

    """
    generate, check_model, get_adapters, model_name = [_owner(*place) for place in _WRAPPED]
    for place in _NEEDED:
        _owner(*place)
    _look_at_parameters()
    if getattr(generate, _MARK, False):
        return
    generate.generate = _wrap_generate(generate.generate)
    check_model._check_model = _wrap_check_model(check_model._check_model)
    get_adapters._maybe_get_adapters = _wrap_get_adapters(get_adapters._maybe_get_adapters)
    model_name.model_name = _wrap_model_name(model_name.model_name)
    setattr(generate, _MARK, True)


def _owner(module: str, name: str, function: str, parameters: tuple[str, ...]) -> Any:
    """The class that owns a function of vLLM, after a look at whether the function is as we know it."""
    try:
        owner = getattr(importlib.import_module(module), name)
        known = inspect.signature(getattr(owner, function)).parameters
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{_version()} has no {module}.{name}.{function}, {_ADVICE}") from error
    # A wrapped function takes anything behind the parameters that we know.
    if missing := [parameter for parameter in parameters if parameter not in known]:
        raise PluginError(f"{_version()}: {name}.{function} takes no {', '.join(missing)}, {_ADVICE}")
    return owner


def _look_at_parameters() -> None:
    """Raises PluginError where vLLM's sampling parameters lack one that a capture tells of."""
    module, name = _PARAMETERS
    try:
        params = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise PluginError(f"{_version()} has no {module}.{name} with defaults, {_ADVICE}") from error
    if missing := [parameter for parameter in PARAMETERS if not hasattr(params, parameter)]:
        raise PluginError(f"{_version()}: {name} has no {', '.join(missing)}, {_ADVICE}")


_PARAMETERS = ("vllm.sampling_params", "SamplingParams")

_ADVICE = "which Slipstream's plugin needs: use vLLM 0.32 or 0.33, or start vLLM without the plugin."


def _version() -> str:
    return f"vLLM {importlib.import_module('vllm').__version__}"


def _wrap_generate(original: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., Any]:
    # A plain function: it runs where the request is handled, not where the outputs are awaited, so that all
    # generations of a call are known before the first one ends.
    def generate(
        self: Any, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        call = CURRENT.get()
        if call is None or not call.captures:
            return original(self, prompt, sampling_params, request_id, *args, **kwargs)
        model = getattr(self, "model_config", None)
        if getattr(model, "logprobs_mode", None) != "processed_logprobs":
            call.refuse("the server runs without --logprobs-mode processed_logprobs")
        generation = call.begin(prompt, sampling_params)
        # Given to the whole server with --logits-processors; the parameters of a request do not show them.
        call.processors |= bool(getattr(model, "logits_processors", None))
        outputs = original(self, prompt, generation.params, request_id, *args, **kwargs)
        return _recorded(outputs, call, generation)

    return generate


async def _recorded(
    outputs: AsyncGenerator[Any, None], call: Call, generation: Generation
) -> AsyncGenerator[Any, None]:
    try:
        async for output in outputs:
            # Before the output goes on: the frame that it becomes must find the capture complete.
            call.add(generation, output)
            yield output
    finally:
        generation.ended = True
        # A generator that is merely dropped is closed by the garbage collector, late: vLLM aborts in here.
        await outputs.aclose()


def _wrap_check_model(original: Callable[..., Any]) -> Callable[..., Any]:
    async def check_model(self: Any, request: Any) -> Any:
        call = CURRENT.get()
        if call is None:
            return await original(self, request)
        call.asked = request.model
        call.look_at_request(request)
        error = await original(self, _answered_by(call, request))
        if error is None and not _is_served(self, call.model):
            # VLLM_SKIP_MODEL_NAME_VALIDATION lets any name through, to be answered by the base model.
            error = self.create_error_response(
                f"The model `{call.model}` does not exist.",
                err_type="NotFoundError",
                status_code=HTTPStatus.NOT_FOUND,
                param="model",
            )
        return error

    return check_model


def _wrap_get_adapters(original: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_get_adapters(self: Any, request: Any, supports_default_mm_loras: bool = False) -> Any:
        call = CURRENT.get()
        if call is None:
            return original(self, request, supports_default_mm_loras)
        if not _is_served(self, call.model):
            # It was there a moment ago, when the model was checked, and has been unloaded since.
            not_found = importlib.import_module("vllm.exceptions").VLLMNotFoundError
            raise not_found(f"The model `{call.model}` does not exist.")
        return original(self, _answered_by(call, request), supports_default_mm_loras)

    return maybe_get_adapters


def _wrap_model_name(original: Callable[..., str]) -> Callable[..., str]:
    def model_name(self: Any, lora_request: Any = None) -> str:
        call = CURRENT.get()
        if call is None:
            return original(self, lora_request)
        # A request without `model` is shown the base model's name by vLLM, and so it is here.
        return call.asked or original(self, None)

    return model_name


def _answered_by(call: Call, request: Any) -> Any:
    """The request with the header's model in place of the body's. A copy: others go on reading the request."""
    return request.model_copy(update={"model": call.model})


def _is_served(serving: Any, model: str) -> bool:
    return model in serving.models.lora_requests or serving.models.is_base_model(model)
