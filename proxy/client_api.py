"""What agents may ask besides their calls: the models, the end of a session, a reward for it."""

from __future__ import annotations

import re
import time
from typing import Any, Literal
from urllib.parse import parse_qs, unquote

import orjson
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from proxy.asgi import ClientGone, Receive, Scope, Send, read_body, respond, respond_error
from proxy.errors import BadRequest, NoSuchMethod, NoSuchPath, NotServing, ProxyError, UnknownVersion
from proxy.paths import PREFIX, SEGMENT, read_segment
from proxy.recorder import Recorder
from proxy.sessions import SessionTable
from proxy.upstreams import Upstreams
from storage.states import ClosedBy
from storage.types import Identity, Owner, Reward, new_id

_OWN = re.compile(
    rb"%b/v1/(?:models(?:/(?P<model>%b(?:/%b)*))?|sessions/(?P<session>%b)/(?P<act>end|reward))"
    % (PREFIX, SEGMENT, SEGMENT, SEGMENT)
)
_BODY_BYTES = 2**20
NOT_RECORDED = "recording is down: this was not kept; repeat it"


def serves(scope: Scope) -> bool:
    """Whether a request is for Slipstream itself, and not for vLLM."""
    return _OWN.fullmatch(scope["raw_path"]) is not None


class RewardBody(BaseModel):
    """A reward as a client or the admin gives it."""

    model_config = ConfigDict(extra="forbid")

    value: FiniteFloat
    name: str = Field("reward", min_length=1, max_length=256)
    reason: str | None = Field(None, max_length=10_000)


class ClientApi:
    """Serves the paths under ``/v1`` that are Slipstream's own."""

    def __init__(self, upstreams: Upstreams, table: SessionTable, recorder: Recorder, aliases: tuple[str, ...]) -> None:
        self._upstreams = upstreams
        self._table = table
        self._recorder = recorder
        self._aliases = tuple(alias for alias in aliases if alias != "*")

    async def __call__(self, scope: Scope, receive: Receive, send: Send, owner: Owner) -> None:
        try:
            await respond(send, 200, orjson.dumps(await self._answer(scope, receive, owner)))
        except ClientGone:
            pass
        except ProxyError as error:
            await respond_error(send, error, path=scope["path"])

    async def _answer(self, scope: Scope, receive: Receive, owner: Owner) -> dict[str, Any]:
        found = _OWN.fullmatch(scope["raw_path"])
        assert found is not None
        method = "GET" if found["session"] is None else "POST"
        if scope["method"] != method:
            raise NoSuchMethod(method)
        if found["session"] is None:
            return self._models() if found["model"] is None else self._model(unquote(found["model"].decode()))
        identity = Identity(owner, read_segment("session", found["session"]))
        if found["act"] == b"end":
            answer = self._end(identity)
        else:
            body = await read_body(receive, _BODY_BYTES)
            episode = _episode(scope)
            answer = keep_reward(self._recorder, identity, episode, "client", parse_reward(body))
            answer["waits"] = not self._table.knows(identity, episode)
        await self._recorder.settle()
        if self._recorder.problem is not None:
            raise NotServing(NOT_RECORDED)
        return answer

    def _models(self) -> dict[str, Any]:
        upstream = self._upstreams.choose("", None)
        aliases = [
            {"id": alias, "object": "model", "created": 0, "owned_by": "slipstream", "root": upstream.base}
            for alias in self._aliases
        ]
        return {"object": "list", "data": [*aliases, *upstream.models]}

    def _model(self, name: str) -> dict[str, Any]:
        for model in self._models()["data"]:
            if model["id"] == name:
                return dict(model)
        raise UnknownVersion(f"The model `{name}` does not exist.")

    def _end(self, identity: Identity) -> dict[str, Any]:
        if not self._table.end(identity, ClosedBy.ENDED, time.time()):
            raise NoSuchPath(f"there is no session {identity.session_id}")
        return {"session": identity.session_id, "state": "closed"}


def parse_reward(body: bytes) -> RewardBody:
    try:
        return RewardBody.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "body"
        raise BadRequest(f'{where}: {problem["msg"]}; send {{"value": number, "name"?: str, "reason"?: str}}') from None


def keep_reward(
    recorder: Recorder, identity: Identity, episode: int | None, source: Literal["client", "admin"], body: RewardBody
) -> dict[str, Any]:
    """Record a reward. Raises `NotServing` when it could not be kept."""
    reward = Reward(new_id(), identity, episode, body.name, source, body.value, body.reason, time.time())
    if not recorder.reward(reward):
        raise NotServing(NOT_RECORDED)
    return {"id": reward.id, "session": identity.session_id}


def _episode(scope: Scope) -> int | None:
    values = parse_qs(scope["query_string"].decode("latin-1")).get("episode")
    if not values:
        return None
    if not re.fullmatch("[1-9][0-9]{0,8}", values[0]):
        raise BadRequest(f"episode is {values[0][:20]!r}; it is a whole number from 1")
    return int(values[0])
