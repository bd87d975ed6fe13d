"""What one call generated, and the frame that carries it to the proxy.

Knows vLLM's objects by their attributes only, so that it runs (and is tested) without vLLM.

    call ─┬─ generation (one `generate` of the engine: one prompt) ─┬─ choice (ids, logprobs, finish)
          │                                                         └─ choice ...
          └─ generation ...
"""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FRAME_MARK = b"\x1e"
"""ASCII's record separator: no JSON text and no event stream begins with it."""

PAYLOAD_VERSION = 3
IDS, LOGPROBS = "i", "f"
"""The arrays of numbers: int32 and float32, which is all that vLLM's logprobs hold; little-endian, as every machine
that vLLM runs on."""

_UNTRAINABLE_PROMPTS = {
    "embeds": "prompt_embeds: the prompt has no token ids",
    "multimodal": "multimodal prompt: its token ids do not hold the whole input",
    "enc_dec": "encoder-decoder model",
}
"""By the `type` of vLLM's engine inputs (vllm/inputs/engine.py)."""

PARAMETERS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "logprob_token_ids",
    "logit_bias",
    "structured_outputs",
    "allowed_token_ids",
    "bad_words",
    "thinking_token_budget",
    "extra_args",
    "watermarking",
    "trace_decode_token_ids",
    "output_kind",
    "clone",
)
"""What is read of vLLM's SamplingParams: without one of them nothing could be said of how a token was drawn."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """The sampling of an explored call, whatever its client asked for."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float

    def apply(self, params: Any) -> None:
        """Puts it into ``params``, a clone of vLLM's parameters that nobody has looked at: vLLM computes their
        `sampling_type` once. What else comes of being greedy (top_p, top_k, min_p) is set here; the seed stays.
        """
        params.temperature, params.top_p = self.temperature, self.top_p
        params.top_k, params.min_p = self.top_k, self.min_p


@dataclass(slots=True)
class Choice:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """One per id. Shorter when vLLM left one out: never padded, the payload then says so."""
    finish: str | None = None
    stop: str | int | None = None


class Generation:
    """One `generate` of the engine: one prompt and its n choices."""

    def __init__(self, params: Any) -> None:
        self.params = params
        self.prompt: list[int] = []
        self.choices: dict[int, Choice] = {}
        self.started = False
        self.finished = False
        """vLLM said that all choices have ended."""
        self.ended = False
        """No output will follow: finished, failed or cancelled."""

    def add(self, output: Any) -> None:
        """Takes in one RequestOutput. Its lists are live: vLLM goes on writing to them, so they are copied."""
        self.started = True
        if not self.prompt and output.prompt_token_ids:
            self.prompt = list(output.prompt_token_ids)
        for part in output.outputs:
            # Only DELTA outputs are pieces; CUMULATIVE and FINAL_ONLY ones hold everything up to here.
            if self.params.output_kind.name != "DELTA" or part.index not in self.choices:
                self.choices[part.index] = Choice()
            choice = self.choices[part.index]
            ids = list(part.token_ids)
            choice.ids += ids
            choice.logprobs += _sampled_logprobs(ids, part.logprobs)
            choice.finish, choice.stop = part.finish_reason, part.stop_reason
        if output.finished:
            self.finished = self.ended = True

    def fault(self) -> str | None:
        """Why this generation cannot be trained on, where its own outputs show it."""
        if not self.finished:
            return "a generation ended before it was finished"
        if any(len(choice.ids) != len(choice.logprobs) for choice in self.choices.values()):
            return "vLLM left out the logprob of a sampled token"
        if len(self.choices) != self.params.n:
            return f"vLLM gave {len(self.choices)} of {self.params.n} choices"
        return None


def _sampled_logprobs(ids: list[int], logprobs: Any) -> list[float]:
    """The logprobs of the sampled ids, as far as vLLM gave them (JSON knows no infinity: left out, too)."""
    if logprobs is None:
        return []
    given = [logprobs[position].get(token) for position, token in enumerate(ids[: len(logprobs)])]
    return [one.logprob for one in given if one is not None and math.isfinite(one.logprob)]


def _failed(error: Exception) -> str:
    return f"capture failed: {type(error).__name__}: {error}"


class Call:
    """One request that the proxy sent: who answers it, and what was generated for it."""

    def __init__(self, nonce: str, model: str, exploration: Exploration | None = None) -> None:
        self.nonce = nonce
        self.model = model
        """The model or adapter that answers, whatever the body says."""
        self.exploration = exploration
        """None: sampled as the body says; so is a call that is not trainable, whatever stands here."""
        self.asked: str | None = None
        """The body's own `model`; the response repeats it."""
        self.captures = True
        """False on paths that are answered under `model` but not recorded (embeddings, tokenize, ...)."""
        self.processors = False
        """The server runs logits processors of its own on every request."""
        self.generations: list[Generation] = []
        self._reason: str | None = None

    @property
    def trainable(self) -> bool:
        return self._reason is None

    @property
    def running(self) -> bool:
        return any(not generation.ended for generation in self.generations)

    @property
    def empty(self) -> bool:
        """Nothing was generated, and nothing kept it from being trainable: there is nothing to tell."""
        return self.trainable and not self.generations

    @property
    def started(self) -> bool:
        return any(generation.started for generation in self.generations)

    def refuse(self, reason: str) -> None:
        """Marks the call as not trainable. The first reason stays."""
        self._reason = self._reason or reason

    def look_at_request(self, request: Any) -> None:
        """Finds what only the request tells: vLLM's request object of whatever dialect."""
        if getattr(request, "use_beam_search", False):
            self.refuse("beam search: its tokens are chosen, not sampled")
        if getattr(request, "prompt_embeds", None) is not None:
            self.refuse(_UNTRAINABLE_PROMPTS["embeds"])
        if getattr(request, "background", False):
            self.refuse("background: the answer is generated after the response")
        if getattr(request, "echo", False) and getattr(request, "max_tokens", None) == 0:
            self.refuse("echo with max_tokens 0: the sampled token is not delivered")

    def begin(self, prompt: Any, params: Any) -> Generation:
        """A new generation of this call, to be run with the parameters that it holds.

        Whatever fails here, the client's answer goes on, with its own parameters.
        """
        try:
            params = self._prepared(prompt, params)
        except Exception as error:  # noqa: BLE001 - promise 3: recording never stops the agent
            self.refuse(_failed(error))
        generation = Generation(params)
        self.generations.append(generation)
        return generation

    def _prepared(self, prompt: Any, params: Any) -> Any:
        """The parameters to run with: the client's own where the call is not trainable, else a copy that captures."""
        if self.generations and not self.running:
            self.refuse("built-in tools: several generations in one answer")
        if isinstance(prompt, Mapping):
            kind = "embeds" if prompt.get("prompt_embeds") is not None else prompt.get("type")
            if kind in _UNTRAINABLE_PROMPTS:
                self.refuse(_UNTRAINABLE_PROMPTS[kind])
        elif hasattr(prompt, "__aiter__"):
            self.refuse("streamed input")
        if params.trace_decode_token_ids is not None:
            self.refuse("trace_decode_token_ids: the tokens are given, not sampled")
        if self.trainable:
            # The client's object stays as it is: the Responses API repeats `temperature`, `top_logprobs` and more.
            params = params.clone()
            if self.exploration is not None:
                self.exploration.apply(params)
            if params.logprobs is None and params.logprob_token_ids is None:
                params.logprobs = 0
        return params

    def add(self, generation: Generation, output: Any) -> None:
        """Takes in an output. Whatever it holds, the client's answer goes on: a fault is a reason, no error."""
        try:
            if self.trainable:
                generation.add(output)
        except Exception as error:  # noqa: BLE001 - promise 3: recording never stops the agent
            self.refuse(_failed(error))
        if not self.trainable:
            generation.ended = generation.ended or getattr(output, "finished", False)
            generation.started = True

    def payload(self) -> bytes:
        """The capture as the proxy reads it: a line of JSON, and behind it the thousands of numbers that it counts."""
        faults = [fault for generation in self.generations if (fault := generation.fault())]
        if faults and self.trainable:
            self.refuse(faults[0])
        arrays: list[array[Any]] = []

        def count(code: str, numbers: Sequence[float]) -> int:
            arrays.append(array(code, numbers))
            return len(numbers)

        head = {
            "v": PAYLOAD_VERSION,
            "reason": self._reason,
            "prompts": [count(IDS, generation.prompt) for generation in self.generations],
            "choices": [
                {
                    # As vLLM's completions count them: all choices of the first prompt, then of the second.
                    "index": position * generation.params.n + index,
                    "prompt": position,
                    "ids": count(IDS, choice.ids),
                    "logprobs": count(LOGPROBS, choice.logprobs),
                    "finish": choice.finish,
                    "stop": choice.stop,
                }
                for position, generation in enumerate(self.generations)
                for index, choice in sorted(generation.choices.items())
            ],
            "sampling": self._sampling(),
        }
        return b"".join((_line(head), *arrays))

    def frame(self) -> bytes:
        """The capture as it travels: mark, nonce, length, payload. The nonce tells it from model output."""
        try:
            payload = self.payload()
        except Exception as error:  # noqa: BLE001 - promise 3: an id that is none, parameters that lack something
            payload = _line(
                {"v": PAYLOAD_VERSION, "reason": _failed(error), "prompts": [], "choices": [], "sampling": {}}
            )
        return b"%b%b %d\n%b" % (FRAME_MARK, self.nonce.encode(), len(payload), payload)

    def _sampling(self) -> dict[str, Any]:
        """The sampling parameters after vLLM's own defaults: what the tokens were really drawn with."""
        if not self.generations:
            return {}
        params = self.generations[0].params
        return {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "repetition_penalty": params.repetition_penalty,
            "seed": params.seed,
            "n": params.n,
            "max_tokens": params.max_tokens,
            "min_tokens": params.min_tokens,
            "logit_bias": bool(params.logit_bias),
            "structured": params.structured_outputs is not None,
            # Everything else that vLLM may do to the logits of a request (extra_args feed custom processors).
            "logits_processors": bool(
                self.processors
                or params.allowed_token_ids
                or params.bad_words
                or params.thinking_token_budget is not None
                or params.extra_args
                or params.watermarking  # set by the engine when it does so
            ),
        }


def _line(head: dict[str, Any]) -> bytes:
    return json.dumps(head, separators=(",", ":")).encode() + b"\n"
