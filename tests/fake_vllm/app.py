"""The fake as an ASGI app: its routes."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

from tests.fake_vllm import (
    capture,
    chat,
    completions,
    control,
    faults,
    messages,
    pooling,
    responses,
    tokenization,
    tokens,
    transcriptions,
    validation,
)
from tests.fake_vllm.faults import Message, Send
from tests.fake_vllm.replies import Asked, Reply, document, error
from tests.fake_vllm.state import Received, State, Stored
from tests.fake_vllm.validation import Refused, Unread

Receive = Callable[[], Awaitable[Message]]

_PAUSE_SECONDS = 0.01
_ANSWERS, _SMALL = 256, 2**16
"""So many answers are kept, to requests of at most that many bytes."""

_GENERATING: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (validation.Chat, "messages"),
    "/v1/completions": (validation.Completion, "prompt"),
    "/v1/responses": (validation.Responses, "input"),
    "/v1/messages": (validation.Messages, "messages"),
}
"""The dialects: the form of a request, and what it asks."""
_FORMS: dict[str, type[BaseModel]] = {
    **{path: form for path, (form, _) in _GENERATING.items()},
    **dict.fromkeys(pooling.ANSWERS, validation.Input),
    "/v1/messages/count_tokens": validation.CountTokens,
    "/tokenize": validation.Tokenize,
    "/detokenize": validation.Detokenize,
    "/v1/load_lora_adapter": validation.Adapter,
    "/v1/unload_lora_adapter": validation.AdapterName,
}
_TRANSCRIPTIONS = "/v1/audio/transcriptions"
_READ = ("/v1/models", "/health")
_OTHER_MODELS = frozenset([*pooling.ANSWERS, _TRANSCRIPTIONS])
"""Paths that a model has which does something else than to write text."""


class FakeApp:
    """Serves ``state``. ``secret`` None: a vLLM without Slipstream's plugin."""

    def __init__(self, state: State, secret: str | None, *, runtime_adapters: bool) -> None:
        self.state = state
        self._secret = secret
        self._paths = set(_FORMS) - (
            set() if runtime_adapters else {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
        )
        self._numbers = itertools.count()
        self._answers: dict[object, Reply] = {}
        self.next_faults: dict[str, str] = {}
        self.lasting_faults: dict[str, str] = {}
        """By path: the fault of the next request to it."""
        self.fault_after_load: str | None = None
        """The fault of the first look at the models after the next adapter was loaded."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        headers = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
        received = Received(scope["method"], scope["path"], scope["query_string"], headers, b"")
        if self.state.keeps_requests:
            self.state.requests.append(received)
        body = await _body(receive)
        if body is None:
            received.cancelled.set()
            return
        received.body = body
        mark = capture.read_mark(headers, self._secret)
        answering = asyncio.ensure_future(self._respond(received, mark, scope, send))
        await _until_gone(answering, receive, received)

    def answer(self, path: str, request: dict[str, Any]) -> Reply:
        """The answer to a request that nobody sent."""
        body = json.dumps(request).encode()
        return self._answer(Received("POST", path, b"", [(b"content-type", b"application/json")], body), None)

    async def _respond(self, received: Received, mark: capture.Mark | None, scope: Any, send: Send) -> None:
        generates = received.path in _GENERATING
        self.state.running += generates
        try:
            while generates and (self.state.paused or self.state.sleeping):  # noqa: ASYNC110 - set by any thread
                await asyncio.sleep(_PAUSE_SECONDS)
            reply = self._answer(received, mark)
            ordered = self.next_faults.pop(received.path, self.lasting_faults.get(received.path))
            fault = faults.Fault.read(ordered) if ordered else faults.asked_for(received)
            await faults.write(faults.spoil(reply, fault, received), fault, mark, self.state.steps, scope, send)
        finally:
            self.state.running -= generates

    def _answer(self, received: Received, mark: capture.Mark | None) -> Reply:
        try:
            return self._served(received, mark)
        except Refused as no:
            if no.kind != "Bad Request" and received.path.startswith("/v1/messages"):
                return messages.error(no.status, no.kind, no.message)
            return error(no.status, no.kind, no.message, no.param)
        except Unread:
            return document({"detail": "There was an error parsing the body"}, 400)
        except (LookupError, AttributeError, TypeError, ValueError) as fault:
            # A request that has its form outside and not inside: vLLM says what its own code stumbled over.
            return error(400, "BadRequestError", f"{type(fault).__name__}: {fault}")

    def _served(self, received: Received, mark: capture.Mark | None) -> Reply:
        method, path = received.method, received.path
        if method == "GET" and path == "/v1/models":
            return document({"object": "list", "data": self.state.cards()})
        if self.state.text_only and path in _OTHER_MODELS:
            return document({"detail": "Not Found"}, 404)
        if path.endswith("/") and path[:-1] in self._paths:
            there = f"http://{received.header('host')}{path[:-1]}".encode()
            return Reply(307, (b"",), None, headers=((b"location", there),))
        if path.startswith("/v1/responses/"):
            return self._stored(method, path.removeprefix("/v1/responses/"))
        if path == _TRANSCRIPTIONS and method == "POST":
            form = transcriptions.read_form(dict(received.headers).get(b"content-type", b""), received.body)
            return transcriptions.reply(self._asked(form, received, mark))
        if path in self._paths and method == "POST":
            return self._post(received, mark)
        found = control.reply(self.state, method, path, received.query)
        if found is not None:
            return found
        if path in self._paths or path in (*_READ, _TRANSCRIPTIONS):
            return _not_allowed(b"GET" if path in _READ else b"POST")
        return document({"detail": "Not Found"}, 404)

    def _post(self, received: Received, mark: capture.Mark | None) -> Reply:
        path = received.path
        given = validation.read_json(dict(received.headers), received.body)
        if path == "/v1/chat/completions":
            validation.check_messages(given)
        request = validation.read(_FORMS[path], given)
        if path == "/v1/load_lora_adapter":
            return self._load(request)
        if path == "/v1/unload_lora_adapter":
            return self._unload(request)
        asked = self._asked(request, received, mark)
        if path in _GENERATING:
            return self._generate(asked, path) if self.state.stores else self._known(asked, path, len(received.body))
        match path:
            case "/tokenize":
                return tokenization.tokenize(request)
            case "/detokenize":
                return tokenization.detokenize(request)
            case "/v1/messages/count_tokens":
                return messages.count_tokens(request)
        return pooling.ANSWERS[path](asked)

    def _asked(self, request: dict[str, Any], received: Received, mark: capture.Mark | None) -> Asked:
        """Raises Refused for a model that is not there."""
        shown = request.get("model") or self.state.base or ""
        name = mark.model if mark is not None and mark.model is not None else shown
        model = self.state.model(name)
        if model is None:
            text = f"The model `{name}` does not exist. Valid aliases: {self.state.base}."
            raise Refused(404, "NotFoundError", text, "model")
        salt = received.header("x-request-id") or hashlib.sha256(received.body).hexdigest()
        number = str(next(self._numbers)) if self.state.unique_ids else ""
        explored = mark.exploration if mark is not None else {}
        return Asked(model, shown, request, salt + number, number, explored)

    def _known(self, asked: Asked, path: str, size: int) -> Reply:
        """The answer, at once where the request was answered before: who measures others must not wait for the fake."""
        key = (path, asked.model, asked.name, asked.salt, *asked.exploration.items())
        found = self._answers.get(key)
        if found is None:
            found = self._generate(asked, path)
            if len(self._answers) >= _ANSWERS:
                self._answers.clear()
            if size <= _SMALL:
                self._answers[key] = found
        return found

    def _generate(self, asked: Asked, path: str) -> Reply:
        request = asked.request
        validation.check_stream_options(request)
        self._check_prompt(request, path)
        if not (request.get("max_tokens") == 0 and request.get("echo")):
            validation.check_sampling(request)
        match path:
            case "/v1/chat/completions":
                return chat.reply(asked)
            case "/v1/completions":
                return completions.reply(asked)
            case "/v1/messages":
                return messages.reply(asked)
        return self._responses(asked)

    def _check_prompt(self, request: dict[str, Any], path: str) -> None:
        """Raises Refused where nothing is asked, or more than fits."""
        asked: Any = request.get(_GENERATING[path][1])
        if path == "/v1/completions":
            if not asked:
                raise validation.wrong("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
            return
        if asked == []:
            raise validation.wrong("Cannot apply chat template to an empty conversation. Provide at least one message.")
        if self.state.text_only and path == "/v1/chat/completions" and tokens.multimodal(asked):
            raise validation.wrong(f"{self.state.base} is not a multimodal model")

    def _responses(self, asked: Asked) -> Reply:
        request = asked.request
        if request.get("background") and not self.state.stores:
            text = "This vLLM engine does not support `store=True` and therefore does not support the background mode."
            raise validation.wrong(text, "background", "invalid_request_error")
        before = request.get("previous_response_id")
        if before is not None and before not in self.state.stored:
            raise _unknown_response(before)
        reply, whole, conversation = responses.reply(asked, self.state.stored[before].messages if before else [])
        if self.state.stores and request.get("store") is not False:
            self.state.stored[whole["id"]] = Stored(whole, conversation)
        return reply

    def _stored(self, method: str, rest: str) -> Reply:
        response_id, _, action = rest.partition("/")
        if action not in ("", "cancel"):
            return document({"detail": "Not Found"}, 404)
        allowed = "POST" if action else "GET"
        if method != allowed:
            return _not_allowed(allowed.encode())
        if response_id not in self.state.stored:
            raise _unknown_response(response_id)
        if action:
            text = "Cannot cancel a synchronous response."
            raise validation.wrong(text, "response_id", "invalid_request_error")
        return document(self.state.stored[response_id].document)

    def _load(self, request: Any) -> Reply:
        name, folder = request["lora_name"], request["lora_path"]
        if not name or not folder:
            raise validation.wrong("Both 'lora_name' and 'lora_path' must be provided.", kind="InvalidUserInput")
        if name == self.state.base:
            raise validation.wrong(
                f"The lora adapter '{name}' conflicts with a served base model.", kind="InvalidUserInput"
            )
        if name in self.state.adapters:
            text = (
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
            raise validation.wrong(text, kind="InvalidUserInput")
        try:
            self.state.load(name, folder)
        except OSError as missing:
            text = f"Loading lora {name} failed: No adapter found for {folder}"
            raise Refused(404, "NotFoundError", text) from missing
        if self.fault_after_load is not None:
            self.next_faults["/v1/models"], self.fault_after_load = self.fault_after_load, None
        return Reply(200, (f"Success: LoRA adapter '{name}' added successfully.".encode(),), None)

    def _unload(self, request: Any) -> Reply:
        name = request["lora_name"]
        if self.state.adapters.pop(name, None) is None:
            raise Refused(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        return Reply(200, (f"Success: LoRA adapter '{name}' removed successfully.".encode(),), None)


def _not_allowed(allowed: bytes) -> Reply:
    return Reply(405, (b'{"detail":"Method Not Allowed"}',), headers=((b"allow", allowed),))


def _unknown_response(response_id: str) -> Refused:
    text = f"Response with id '{response_id}' not found."
    return Refused(404, "invalid_request_error", text, "response_id")


async def _until_gone(answering: asyncio.Future[None], receive: Receive, received: Received) -> None:
    """Wait for the end of the response, or for the client to leave before it."""
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            received.cancelled.set()
            answering.cancel()
        await asyncio.gather(answering, return_exceptions=received.cancelled.is_set())
    finally:
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None where the client left before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
