"""Which vLLM the plugin refuses to start in, and what becomes of a call where vLLM is not as it was found then."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.vllm_plugin.capture import CaptureMiddleware
from proxy.vllm_plugin.recording import PARAMETERS, Call
from tests.vllm_plugin.test_capture import GOOD, NONCE, Messages, ask, frame_of


async def refusal(application: Any) -> str:
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    await CaptureMiddleware(application)({"type": "lifespan"}, receive, send)
    if not sent:
        return ""
    assert sent[0]["type"] == "lifespan.startup.failed"
    text: str = sent[0]["message"]
    return text


async def test_it_starts_where_all_is_well(application: Any) -> None:
    assert await refusal(application) == ""
    assert application.requests[0]["type"] == "lifespan"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SLIPSTREAM_PLUGIN_SECRET", "", "SLIPSTREAM_PLUGIN_SECRET is not set"),
        ("SLIPSTREAM_PLUGIN_SECRET", "two words", "without spaces"),
        ("VLLM_USE_RUST_FRONTEND", "1", "Rust front end"),
    ],
)
async def test_it_refuses_to_start_in_words(
    application: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    assert told in await refusal(application)
    assert application.requests == []


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        ("vllm.v1.engine.async_llm", "AsyncLLM"),
        ("vllm.entrypoints.serve.engine.serving", "BaseServing"),
        ("vllm.entrypoints.openai.models.serving", "OpenAIServingModels"),
    ],
)
async def test_a_vllm_without_an_inside_that_we_know_is_refused_and_left_whole(
    application: Any, monkeypatch: pytest.MonkeyPatch, module: str, owner: str
) -> None:
    before = type(application.engine).generate, type(application.serving)._check_model
    monkeypatch.delattr(sys.modules[module], owner)
    text = await refusal(application)
    assert "vLLM 0.0.fake" in text
    assert f"{module}.{owner}" in text
    assert (type(application.engine).generate, type(application.serving)._check_model) == before


class Lacking:
    """vLLM's parameters without one of theirs; what is read of them is noted."""

    def __init__(self, whole: Any, lacks: str = "") -> None:
        self.__dict__.update(_whole=whole, _lacks=lacks, read=set())

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        if name == self._lacks:
            raise AttributeError(f"there is no {name}")
        return self if name == "clone" else getattr(self._whole, name)

    def __call__(self) -> "Lacking":
        return self


@pytest.mark.parametrize("lacks", PARAMETERS)
async def test_a_vllm_whose_parameters_lack_one_that_is_read_is_refused(
    application: Any, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    before = type(application.engine).generate
    monkeypatch.setattr(sys.modules["vllm.sampling_params"], "SamplingParams", Lacking(application.params, lacks))
    text = await refusal(application)
    assert f"vLLM 0.0.fake: SamplingParams has no {lacks}, which" in text
    assert "use vLLM 0.32" in text
    assert type(application.engine).generate is before


async def test_a_vllm_without_parameters_is_refused(application: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["vllm.sampling_params"], "SamplingParams")
    assert "has no vllm.sampling_params.SamplingParams" in await refusal(application)


def test_every_parameter_that_is_read_is_looked_for_at_the_start(application: Any) -> None:
    params = Lacking(application.params)
    call = Call(NONCE, "base")
    generation = call.begin(application.prompts[0], params)
    part = SimpleNamespace(index=0, token_ids=[5], logprobs=[], finish_reason="stop", stop_reason=None)
    call.add(generation, SimpleNamespace(prompt_token_ids=[1], outputs=[part], finished=True))
    call.frame()
    assert params.read == set(PARAMETERS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("lacks", sorted(set(PARAMETERS) - {"n", "max_tokens", "logprobs", "output_kind"}))
async def test_an_attribute_that_is_gone_during_a_call_is_a_reason_and_no_error(
    application: Any, lacks: str, *, stream: bool
) -> None:
    application.stream, application.request.model = stream, "policy@1"
    application.params = Lacking(application.params, lacks)
    unmarked = await ask(application, None)
    sent = await ask(application, GOOD)
    (frame,) = [message for message in sent if message.get("body", b"").startswith(b"\x1e")]
    assert frame_of(frame)["reason"] == f"capture failed: AttributeError: there is no {lacks}"
    sent.remove(frame)
    assert sent[1:] == unmarked[1:]


def test_an_output_that_does_not_say_whether_it_is_the_last_breaks_nothing(application: Any) -> None:
    for reason in (None, "beam search"):
        call = Call(NONCE, "base")
        if reason is not None:
            call.refuse(reason)
        call.add(call.begin(application.prompts[0], application.params), object())
        assert not call.trainable
        assert (reason or "capture failed: AttributeError").encode() in call.frame()
