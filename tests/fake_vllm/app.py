"""The fake as an ASGI app: its routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fake_vllm import capture, faults, replies
from tests.fake_vllm.faults import Message, Send
from tests.fake_vllm.replies import Reply
from tests.fake_vllm.state import Received, State

Receive = Callable[[], Awaitable[Message]]


class FakeApp:
    """Serves ``state``. ``secret`` None: a vLLM without Slipstream's plugin."""

    def __init__(self, state: State, secret: str | None, *, runtime_adapters: bool) -> None:
        self.state = state
        self._secret = secret
        self._runtime_adapters = runtime_adapters
        self.next_faults: dict[str, str] = {}
        """By path: the fault of the next request to it."""
        self.fault_after_load: str | None = None
        """The fault of the first look at the models after the next adapter was loaded."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        body = await _body(receive)
        headers = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
        received = Received(scope["method"], scope["path"], scope["query_string"], headers, body)
        self.state.requests.append(received)
        mark = capture.read_mark(headers, self._secret)
        request = _parse(body)
        reply = self._answer(received, request, mark)
        ordered = self.next_faults.pop(received.path, None)
        fault = faults.Fault.read(ordered) if ordered else faults.asked_for(headers, request)
        reply = faults.spoil(reply, fault)
        writing = asyncio.ensure_future(
            faults.write(reply, fault, mark, self._secret is not None, scope, _plain(send, reply))
        )
        await _until_gone(writing, receive, received)

    def _answer(self, received: Received, request: Any, mark: capture.Mark | None) -> Reply:
        match received.method, received.path:
            case "GET", "/v1/models":
                return replies.document({"object": "list", "data": self.state.cards()})
            case "POST", "/v1/load_lora_adapter" if self._runtime_adapters:
                return self._load(request)
            case "POST", "/v1/unload_lora_adapter" if self._runtime_adapters:
                return self._unload(request)
            case "POST", "/v1/chat/completions" | "/v1/completions":
                return self._generate(received, request, mark)
        return replies.error(404, "Not Found", "Not Found")

    def _generate(self, received: Received, request: Any, mark: capture.Mark | None) -> Reply:
        if not isinstance(request, dict):
            return replies.error(400, "BadRequestError", "the body is no JSON object")
        needed = "messages" if received.path == "/v1/chat/completions" else "prompt"
        if (
            not isinstance(request.get(needed), list)
            or not request[needed]
            or not isinstance(request.get("model"), str)
        ):
            return replies.error(400, "BadRequestError", f"Field required: {needed} and model")
        name = mark.model if mark is not None and mark.model is not None else request["model"]
        request = {**request, **mark.exploration} if mark is not None else request
        model = self.state.model(name)
        if model is None:
            return replies.error(404, "NotFoundError", f"The model `{name}` does not exist.")
        if needed == "messages":
            return replies.chat(model, request, received.body)
        return replies.completion(model, request)

    def _load(self, request: Any) -> Reply:
        name, folder = request["lora_name"], request["lora_path"]
        if name in self.state.adapters:
            return replies.error(400, "InvalidUserInput", f"The lora adapter '{name}' has already been loaded.")
        try:
            self.state.load(name, folder)
        except OSError:
            return replies.error(404, "NotFoundError", f"Loading lora {name} failed: No adapter found for {folder}")
        if self.fault_after_load is not None:
            self.next_faults["/v1/models"], self.fault_after_load = self.fault_after_load, None
        return Reply(200, (f"Success: LoRA adapter '{name}' added successfully.".encode(),), b"text/plain")

    def _unload(self, request: Any) -> Reply:
        name = request["lora_name"]
        if self.state.adapters.pop(name, None) is None:
            return replies.error(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        return Reply(200, (f"Success: LoRA adapter '{name}' removed successfully.".encode(),), b"text/plain")


def _plain(send: Send, reply: Reply) -> Send:
    """`send`, with the length's place left to the server where a response is chunked."""

    async def without(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message["headers"] if pair[0] != b"transfer-encoding"]
            message = {**message, "headers": headers}
        await send(message)

    return without


async def _until_gone(writing: asyncio.Future[None], receive: Receive, received: Received) -> None:
    """Wait for the end of the response, or for the client to leave before it."""
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            received.cancelled.set()
            writing.cancel()
        await asyncio.gather(writing, return_exceptions=received.cancelled.is_set())
    finally:
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def _lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
