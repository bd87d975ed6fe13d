"""A judge on a loopback port: an OpenAI-compatible chat endpoint whose answers are given beforehand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope, Send

from tests.trainer.loopback import loopback

Answer = tuple[int, object]
"""A status, and a JSON document or the body's text."""


def says(content: object, tokens: int = 10) -> Answer:
    """A chat completion with this content."""
    return 200, {"choices": [{"message": {"role": "assistant", "content": content}}], "usage": {"total_tokens": tokens}}


def scores(*values: float, ids: str = "", **changes: Any) -> str:
    """An answer as RULER wants it: t1, t2, ... get ``values`` (or those of ``ids``, apart by spaces).

    A `FakeJudge` puts the ids of its request in their places: t1 is the attempt whose messages come first in the
    order of the alphabet, and so on.
    """
    names = ids.split() or [f"t{number + 1}" for number in range(len(values))]
    entries = [
        {"trajectory_id": name, "explanation": f"because of {value}", "score": value} | changes
        for name, value in zip(names, values, strict=True)
    ]
    return json.dumps({"scores": entries})


def by_length(document: dict[str, Any]) -> str:
    """Scores that rise with what an attempt said: the longest gets 1."""
    lengths = {attempt["id"]: len(json.dumps(attempt["messages"])) for attempt in document["trajectories"]}
    least, span = min(lengths.values()), max(lengths.values()) - min(lengths.values()) or 1
    return scores(*((length - least) / span for length in lengths.values()), ids=" ".join(lengths))


@dataclass
class FakeJudge:
    """Gives ``answers`` one after another, the last one for ever; or what ``decide`` makes of the group."""

    answers: list[Answer] = field(default_factory=list)
    decide: Callable[[dict[str, Any]], str] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    retry_after: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body", False):
                break
        self.requests.append({"path": scope["path"], **json.loads(body)})
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        status, document = self._answer()
        text = self._named(document if isinstance(document, str) else json.dumps(document))
        headers = [(b"location", b"/elsewhere")]
        if self.retry_after is not None:
            headers.append((b"retry-after", self.retry_after.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode("utf-8", "surrogatepass")})

    def _answer(self) -> Answer:
        if self.decide is not None:
            return says(self.decide(self.document()))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def _named(self, text: str) -> str:
        """The answer with the ids that this request has for t1, t2, ..."""
        if "trajectory_id" not in text:
            return text
        said = sorted((json.dumps(one["messages"]), one["id"]) for one in self.document()["trajectories"])
        names = {f"t{number + 1}": name for number, (_, name) in enumerate(said)}
        return re.sub(r"\bt\d\b", lambda found: names.get(found[0], found[0]), text)

    def document(self, number: int = -1) -> dict[str, Any]:
        """The group that was handed over in a request."""
        document: dict[str, Any] = json.loads(self.requests[number]["messages"][1]["content"])
        return document


@contextmanager
def served(judge: FakeJudge) -> Iterator[FakeJudge]:
    """Serve on a free loopback port; sets ``judge.url``, which ends in /v1."""
    with loopback(judge) as url:
        judge.url = f"{url}/v1"
        yield judge
