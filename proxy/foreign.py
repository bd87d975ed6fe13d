"""Calls to a vLLM without Slipstream's plugin: what is asked of it in the body, and taken out of its answer again.

Chat and text completions are asked for token ids and logprobs, and the client gets its response without those that it
did not ask for itself. Other dialects tell no ids: their calls are `not trainable: no plugin`. The version that answers
is named in the body, and the response turned back to the name that the client wrote.

Such a vLLM does not tell with what it sampled where a request leaves it out (the model's generation_config), nor
whether its logprobs are those after temperature, top_p and top_k (`--logprobs-mode processed_logprobs`) or those before
them. Where this matters the trainer computes the logprobs itself (`storage.samplings`).
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from proxy import json_text
from proxy.capture import Exploration
from proxy.dialects.documents import Document, objects, parse
from proxy.json_text import Change, Place
from storage import captures
from storage.samplings import RAW_OR_PROCESSED, STATED

NO_IDS = "no plugin: a vLLM without Slipstream's plugin tells token ids in chat and text completions alone"
_FRAME_END = re.compile(rb"\r?\n\r?\n")
_DATA = re.compile(rb"^data: ?(\{[^\r\n]*)", re.MULTILINE)
_NO_LOGPROB = -9999.0
"""What vLLM writes where it has no logprob, or a lower one."""
_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
"""By name, with what leaves the logits as they are."""
_GRAMMARS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_PROCESSED = ("allowed_token_ids", "bad_words", "thinking_token_budget", "vllm_xargs", "logits_processors")


def prepare(
    dialect: str | None, body: bytes, document: Any, model: str | None, exploration: Exploration | None
) -> tuple[bytes, Foreign]:
    """The body that vLLM gets in place of ``body``, and what the response goes through.

    Args:
        dialect: its name; None on paths where no tokens are sampled.
        body: the client's.
        document: the same, parsed.
        model: the vLLM model that answers; None: as the body says.
        exploration: None: sampled as the client asks.

    """
    try:
        plan = _plan(dialect, document, model, exploration)
        return json_text.put(body, plan.put) if plan.put else body, Foreign(plan)
    except (ValueError, RecursionError):
        # No JSON object, or one that is too deep to be looked into: vLLM makes of it what it makes of it.
        return body, Foreign(_Plan(reason=NO_IDS if dialect else None))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is done with a request, and with its response."""

    put: Document = field(default_factory=dict)
    """The members that the request gets, in place of its own or beside them."""
    request: Document = field(default_factory=dict)
    """As vLLM gets it."""
    reason: str | None = None
    """Why nothing is asked of vLLM."""
    collects: bool = False
    """Token ids and logprobs will come."""
    shown: str | None = None
    """The client's name for the model that answers; None: it is the model's own."""

    @property
    def n(self) -> int:
        found = self.request.get("n")
        return found if isinstance(found, int) and found > 0 else 1

    @property
    def choices(self) -> int:
        """How many there will be."""
        prompt = self.request.get("prompt")
        several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
        return self.n * len(prompt) if isinstance(prompt, list) and several else self.n


def _plan(dialect: str | None, document: Any, model: str | None, exploration: Exploration | None) -> _Plan:
    """Raises ValueError where the request is no object."""
    if not isinstance(document, dict):
        raise ValueError("a request must be an object")
    put: Document = {}
    shown = document.get("model") if model is not None else None
    if model is not None and shown != model:
        put["model"] = model
    shown = shown if isinstance(shown, str) and shown != model else None
    if dialect is None or (reason := _refused(dialect, document)):
        return _Plan(put, document | put, None if dialect is None else reason, shown=shown)
    put |= _asked(dialect, document)
    if exploration is not None:
        # All that could come from the model's generation_config, unseen.
        put |= asdict(exploration) | {name: v for name, v in _PENALTIES.items() if document.get(name) is None}
    return _Plan(put, document | put, collects=True, shown=shown)


def _asked(dialect: str, document: Document) -> Document:
    """What the client did not ask for itself."""
    asked: Document = {} if document.get("return_token_ids") else {"return_token_ids": True}
    if not _shows_logprobs(dialect, document):
        asked |= {"logprobs": 0} if dialect == "completions" else {"logprobs": True, "top_logprobs": 0}
    return asked


def _shows_logprobs(dialect: str, document: Document) -> bool:
    found = document.get("logprobs")
    return found is not None if dialect == "completions" else bool(found)


def _refused(dialect: str, document: Document) -> str | None:
    """Why nothing is asked of vLLM: the call could not be trained on, or would be answered otherwise."""
    if dialect not in ("chat", "completions"):
        return NO_IDS
    if document.get("use_beam_search"):
        return "beam search: its tokens are chosen, not sampled"
    if document.get("prompt_embeds") is not None:
        return "prompt_embeds: the prompt has no token ids"
    if document.get("echo"):
        return "no plugin: asked for token ids, vLLM echoes the prompt otherwise"
    if not _shows_logprobs(dialect, document) and any(
        document.get(name) for name in ("top_logprobs", "logprob_token_ids")
    ):
        return "vLLM refuses top_logprobs and logprob_token_ids without logprobs"
    if any(_is_more_than_text(message) for message in objects(document, "messages")):
        return "multimodal prompt: its token ids do not hold the whole input"
    return None


def _is_more_than_text(message: Document) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("type", "text") not in ("text", "refusal") for part in parts)


@dataclass(slots=True)
class _Choice:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    told: bool = True
    """False when vLLM left out token ids."""
    finish: str | None = None
    stop: Any = None

    def add(self, raw: Document) -> None:
        """A choice of a plain response, or a chunk of one."""
        logprobs = raw.get("logprobs") or {}
        values = [one.get("logprob") for one in logprobs.get("content") or ()] or logprobs.get("token_logprobs") or ()
        if raw.get("token_ids") is not None:
            self.ids += _ids(raw["token_ids"])
            self.logprobs += [v for v in values if v is not None and math.isfinite(v) and v > _NO_LOGPROB]
        elif "role" not in (raw.get("delta") or ()):  # the first chunk of a chat tells the role alone
            self.told = False
        if raw.get("finish_reason") is not None:
            self.finish, self.stop = raw["finish_reason"], raw.get("stop_reason")

    @property
    def fault(self) -> str | None:
        if not self.told or not self.ids:
            return "no plugin: vLLM told no token ids (with a reasoning parser, `include_reasoning: false` hides them)"
        if len(self.ids) != len(self.logprobs):
            return "vLLM left out the logprob of a sampled token"
        return None if self.finish else "a generation ended before it was finished"


class Foreign:
    """Feed it a response's bytes as they come; it gives back those for the client, and keeps the capture.

    What must be looked into is given back frame by frame, or where it is no stream as a whole, at its end.
    """

    def __init__(self, plan: _Plan) -> None:
        self.capture: bytes | None = None
        self.resizes = bool(plan.put)
        self._plan = plan
        ids = ("token_ids", "prompt_token_ids") if "return_token_ids" in plan.put else ()
        self._hidden = frozenset((*ids, "logprobs") if "logprobs" in plan.put else ids)
        """What responses and choices hold that the client did not ask for."""
        self._fault: str | None = None
        self._held = bytearray()
        self._prompts: dict[int, list[int]] = {}
        self._choices: dict[int, _Choice] = {}

    def feed(self, data: bytes) -> bytes:
        """The client's bytes among those that came."""
        if not self._plan.put and not self._plan.collects:
            return data
        looked_at = max(0, len(self._held) - 3)
        self._held += data
        if self._held.startswith(b"{"):
            return b""
        frames = []
        while end := _FRAME_END.search(self._held, looked_at):
            frames.append(self._frame(bytes(self._held[: end.end()])))
            del self._held[: end.end()]
            looked_at = 0
        return b"".join(frames)

    def end(self) -> bytes:
        """What was held back, now that nothing more comes; the capture is there then, if there will be one."""
        held, self._held = bytes(self._held), bytearray()
        if held.startswith(b"{"):
            held = self._edited(held) or b""
        if self.capture is None and (self._choices or self._fault or not self._plan.collects):
            self._close()
        return held

    def _frame(self, frame: bytes) -> bytes:
        data = _DATA.search(frame)
        if data is None:
            return frame
        edited = self._edited(data[1])
        return b"" if edited is None else frame[: data.start(1)] + edited + frame[data.end(1) :]

    def _edited(self, body: bytes) -> bytes | None:
        """A response or a chunk as the client gets it; None for one that vLLM sent for our sake alone."""
        document = parse(body)
        if not isinstance(document, dict):
            return body
        if self._plan.collects:
            self._try_to_collect(document)
            if self._is_extra(document):
                return None
        text = body.decode("latin-1")
        return json_text.changed(text, self._changes(text, document)).encode("latin-1")

    def _is_extra(self, document: Document) -> bool:
        """A parser had nothing to say yet, but ids and logprobs were asked for."""
        choices = list(objects(document, "choices"))
        silent = choices and all(one.get("delta") == {} and one.get("finish_reason") is None for one in choices)
        return bool(silent) and {"token_ids", "logprobs"} <= self._hidden

    def _changes(self, text: str, document: Document) -> list[Change]:
        changes: list[Change] = []
        for name, place in json_text.members(text):
            if name in self._hidden:
                changes.append(Change(place, "null"))
            elif name == "choices" and self._hidden:
                for choice in json_text.elements(text, place.start):
                    inner = json_text.members(text, choice.start)
                    changes += [Change(where, "null") for member, where in inner if member in self._hidden]
            elif name == "model":
                changes += self._turned_back(document, place)
            elif name in ("response", "message") and isinstance(document[name], dict):
                # The Responses API's events, and the first of the Messages API's.
                inner = json_text.members(text, place.start)
                for member, where in inner:
                    changes += self._turned_back(document[name], where) if member == "model" else []
        return changes

    def _turned_back(self, document: Document, place: Place) -> list[Change]:
        shown = self._plan.shown
        same = shown is not None and document["model"] == self._plan.request["model"]
        return [Change(place, json_text.dumps(shown))] if same else []

    def _try_to_collect(self, document: Document) -> None:
        if self._fault is not None:
            return
        try:
            self._collect(document)
        except (TypeError, ValueError, AttributeError) as error:
            # Whatever the answer holds, it goes on to the client.
            self._fault = f"capture failed: {type(error).__name__}: {error}"
            self._prompts, self._choices = {}, {}

    def _collect(self, document: Document) -> None:
        prompt = document.get("prompt_token_ids")
        if prompt is not None:
            self._prompts[0] = _ids(prompt)
        for raw in objects(document, "choices"):
            index = raw.get("index", 0)
            if raw.get("prompt_token_ids") is not None:
                self._prompts[index // self._plan.n] = _ids(raw["prompt_token_ids"])
            self._choices.setdefault(index, _Choice()).add(raw)
        finished = sum(choice.finish is not None for choice in self._choices.values())
        if finished == self._plan.choices and self.capture is None:
            self._close()

    def _close(self) -> None:
        reason = self._plan.reason
        if self._plan.collects:
            faults = (choice.fault for choice in self._choices.values())
            reason = self._fault or next((fault for fault in faults if fault), None)
            if reason is None and len(self._prompts) * self._plan.n != self._plan.choices:
                reason = "no plugin: vLLM told no token ids of the prompt"
        if reason is None and not self._plan.collects:
            return  # a path on which no tokens are sampled
        self.capture = captures.pack(
            reason,
            [self._prompts[number] for number in sorted(self._prompts)],
            [
                {
                    "index": index,
                    "prompt": index // self._plan.n,
                    "ids": choice.ids,
                    "logprobs": choice.logprobs,
                    "finish": choice.finish,
                    "stop": choice.stop,
                }
                for index, choice in sorted(self._choices.items())
            ],
            sampling(self._plan.request) if self._plan.collects else {},
        )


def _ids(found: list[Any]) -> list[int]:
    """Token ids as they are stored. Raises ValueError for others, TypeError for what is no list of numbers."""
    if any(not 0 <= one < 2**31 or one != int(one) for one in found):
        raise ValueError("a token id is no number of 31 bits")
    return [int(one) for one in found]


def sampling(request: Document) -> dict[str, Any]:
    """What a request says of its sampling, in the plugin's form; None: the request does not say."""
    found = {name: _number(request.get(name)) for name in STATED}
    if found["temperature"] == 0:
        found |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0}  # as vLLM takes them
    choice = request.get("tool_choice")
    grammar = any(request.get(name) for name in _GRAMMARS) or choice == "required" or isinstance(choice, dict)
    form = request.get("response_format")
    grammar = grammar or (isinstance(form, dict) and form.get("type") != "text")
    # Some of vLLM's tool parsers hold a call to a grammar of their own accord.
    unseen = bool(request.get("tools")) and choice != "none"
    return {
        **found,
        "top_k": 0 if found["top_k"] == -1 else found["top_k"],
        "seed": request.get("seed"),
        "n": request.get("n") or 1,
        "max_tokens": request.get("max_completion_tokens") or request.get("max_tokens"),
        "min_tokens": request.get("min_tokens") or 0,
        "logit_bias": bool(request.get("logit_bias")),
        "structured": True if grammar else (None if unseen else False),
        "logits_processors": any(bool(request.get(name)) for name in _PROCESSED),
        "logprobs": RAW_OR_PROCESSED,
    }


def _number(value: Any) -> Any:
    """A number as it stands; None for all else that vLLM may make a number of."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
