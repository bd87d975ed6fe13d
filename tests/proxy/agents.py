"""Agents that name no session, as the wire shows them: what each says, and what it was answered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.dialects import BY_NAME
from proxy.inference import Inference, Inferred
from proxy.tags import Tags, read_tags
from storage.types import DEFAULT_OWNER, Identity, Owner

Document = dict[str, Any]

_ports = itertools.count(20_000)


@dataclass
class Proxy:
    """What stands between the agents and the model: an `Inference` alone."""

    ended: set[Identity] = field(default_factory=set)
    idle: float = 300.0
    calls: list[Call] = field(default_factory=list)
    inference: Inference = field(init=False)

    def __post_init__(self) -> None:
        self.inference = Inference(self.ended.__contains__, self.idle)

    def ambiguous(self) -> set[str]:
        return {name for call in self.calls for name in call.found.ambiguous}

    def sessions(self) -> dict[str, set[str]]:
        """The agents whose calls each session holds."""
        found: dict[str, set[str]] = {}
        for call in self.calls:
            found.setdefault(call.found.session_id, set()).add(call.agent)
        return found

    def assert_never_mixed(self) -> None:
        mixed = {name for name, agents in self.sessions().items() if len(agents) > 1}
        assert mixed <= self.ambiguous()


@dataclass
class Call:
    """A call under way."""

    agent: str
    found: Inferred
    proxy: Proxy

    def answer(self, document: Document, *, delivered: bool = True) -> None:
        self.proxy.inference.learn(self.found, orjson.dumps(document), delivered=delivered)

    def answer_frames(self, frames: Sequence[Document]) -> None:
        stream = b"".join(b"data: " + orjson.dumps(frame) + b"\n\n" for frame in frames)
        self.proxy.inference.learn(self.found, stream)

    def fail(self) -> None:
        self.proxy.inference.learn(self.found, None)


def call(proxy: Proxy, agent: str, dialect: str, document: Document, **options: Any) -> Call:
    """A request arrives. ``headers`` carry tags; ``port`` is the connection's; ``owner`` the key's."""
    headers = [(name.encode(), value.encode()) for name, value in options.get("headers", {}).items()]
    tags: Tags = read_tags(headers, None, document)
    scope = {"client": ("127.0.0.1", options.get("port", next(_ports)))}
    owner = Owner(options.get("owner", DEFAULT_OWNER))
    found = proxy.inference.find(owner, scope, BY_NAME[dialect], tags, document)
    made = Call(agent, found, proxy)
    proxy.calls.append(made)
    return made


@dataclass
class ChatAgent:
    """An agent of chat completions that carries its whole history."""

    proxy: Proxy
    name: str
    system: str = "You are an agent."
    options: Document = field(default_factory=dict)
    messages: list[Document] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.append({"role": "system", "content": self.system})

    def ask(self, text: str, **body: Any) -> Call:
        self.messages.append({"role": "user", "content": text})
        return self.call(**body)

    def call(self, **body: Any) -> Call:
        return call(self.proxy, self.name, "chat", {"model": "m", "messages": [*self.messages], **body}, **self.options)

    def hear(self, made: Call, text: str) -> None:
        """An answer in words, carried on as most clients do it."""
        made.answer(chat_answer({"role": "assistant", "content": text, "refusal": None}))
        self.messages.append({"role": "assistant", "content": text})

    def hear_call(self, made: Call, tool: str, call_id: str, arguments: str = '{"a": 1}', result: str = "done") -> None:
        """An answer that calls a tool, and the tool's result."""
        function = {"name": tool, "arguments": arguments}
        calls = [{"id": call_id, "type": "function", "function": function}]
        made.answer(chat_answer({"role": "assistant", "content": None, "tool_calls": calls}))
        # Written anew, as frameworks do that hold arguments as objects.
        again = {"name": tool, "arguments": orjson.dumps(orjson.loads(arguments)).decode()}
        self.messages.append({"role": "assistant", "tool_calls": [{**calls[0], "function": again}]})
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result})


def chat_answer(*messages: Document) -> Document:
    return {
        "id": "chatcmpl-1",
        "choices": [{"index": n, "message": m, "finish_reason": "stop"} for n, m in enumerate(messages)],
    }


def ids(*calls: Call) -> list[str]:
    return [made.found.session_id for made in calls]
