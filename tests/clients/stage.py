"""Where clients play: a fake vLLM, the proxy before it, and what the proxy recorded of them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from storage.states import CallOutcome
from storage.types import Call, Session, TaggedBy
from tests.clients.environments import PROJECT, environment
from tests.clients.program import Run
from tests.clients.transcripts import canonical
from tests.fake_vllm import FakeVllm
from tests.proxy.running import Recorded, RunningProxy, until

MODEL = "base-model"
_SECONDS = 120
_TAGGED_BY = {
    "headers": TaggedBy.HEADER,
    "url": TaggedBy.URL,
    "metadata": TaggedBy.BODY,
    "none": TaggedBy.INFERRED,
}

Tagging = Literal["headers", "url", "metadata", "none"]


@dataclass(frozen=True, slots=True)
class Part:
    """A scene of a client's program, and how its calls are tagged."""

    scene: str
    parents: tuple[int | None, ...] = ()
    """Of each call in order, the number of the call that it continues."""
    tagging: Tagging = "headers"
    ends: bool = False
    """Its last call says that it is the last one."""
    headers: dict[str, str] = field(default_factory=dict)
    """More headers, of every call."""

    def run(self, client: str, url: str, *, proxied: bool) -> Run:
        """The run of this part against ``url``."""
        session, scenario = self.session(client), f"weather with {client}"
        base, headers, metadata = f"{url}/v1", dict(self.headers), {}
        if self.tagging == "headers":
            headers |= {"X-Session-Id": session, "X-Scenario-Id": scenario}
        elif self.tagging == "url" and proxied:
            base = f"{url}/scenario/{quote(scenario)}/session/{quote(session)}/v1"
        elif self.tagging == "metadata":
            metadata = {"session_id": session, "scenario_id": scenario}
        last = {"X-Session-End": "true"} if self.ends else {}
        return Run(self.scene, base, MODEL, headers, last, metadata, session)

    def session(self, client: str) -> str:
        return f"{client}: {self.scene}"


@dataclass(frozen=True, slots=True)
class Played:
    """What a part gave, straight against vLLM and through the proxy."""

    part: Part
    session: str
    direct: Any
    proxied: Any


class Stage:
    """One fake and one proxy for all clients."""

    def __init__(self, fake: FakeVllm, proxy: RunningProxy) -> None:
        self.fake = fake
        self.proxy = proxy
        self.recorded = Recorded(proxy.data)

    def play(self, client: str, parts: list[Part]) -> dict[str, Played]:
        """Play ``parts`` by the client's program, first straight against vLLM, then through the proxy."""
        direct = _program(client, [part.run(client, self.fake.url, proxied=False) for part in parts])
        proxied = _program(client, [part.run(client, self.proxy.url, proxied=True) for part in parts])
        return {
            part.scene: Played(part, part.session(client), before, after)
            for part, before, after in zip(parts, direct, proxied, strict=True)
        }

    def session(self, played: Played) -> Session:
        """The session of ``played``, closed if its last call said so."""
        part = played.part
        name = played.session if part.tagging != "none" else self._inferred(played.session)
        found = until(lambda: self.recorded.closed(name) if part.ends else self.recorded.session(name))
        assert found is not None
        return found

    def _inferred(self, topic: str) -> str:
        """The session id that the proxy gave to the calls that tell nothing of theirs."""
        query = "SELECT session_id FROM sessions JOIN calls ON session = sessions.key WHERE instr(input, ?) LIMIT 1"
        row = until(lambda: self.recorded.db.first(query, (f"{topic}: ",)))
        return str(row["session_id"])

    def calls(self, played: Played) -> list[Call]:
        """All calls of ``played``."""
        return self.recorded.calls(self.session(played).session_id, len(played.part.parents))

    def reward_and_end(self, session: str, value: float) -> None:
        """What a client says of its session when that is over."""
        path = f"/v1/sessions/{quote(session, safe='')}"
        assert self.proxy.client.post(f"{path}/reward", json={"value": value}).status_code == 200
        assert self.proxy.client.post(f"{path}/end").status_code == 200


def _program(client: str, runs: list[Run]) -> list[Any]:
    """Transcripts of ``runs``, by the client's program in its own environment. Raises RuntimeError where it died."""
    made = environment(client)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    found = subprocess.run(
        list(made.command),
        input="".join(json.dumps(asdict(run)) + "\n" for run in runs),
        capture_output=True,
        text=True,
        cwd=made.folder,
        env={**kept, "PYTHONPATH": str(PROJECT), "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        timeout=_SECONDS,
        check=False,
    )
    lines = found.stdout.splitlines()
    if found.returncode or len(lines) != len(runs):
        raise RuntimeError(f"{client} ended with {found.returncode} after {len(lines)} runs:\n{found.stderr}")
    return [json.loads(line) for line in lines]


def assert_same(played: Played) -> Any:
    """The client got through the proxy what it gets from vLLM; gives the transcript."""
    assert "error" not in played.direct, played.direct["error"]
    assert "error" not in played.proxied, played.proxied["error"]
    assert canonical(played.proxied["transcript"]) == canonical(played.direct["transcript"])
    return played.proxied["transcript"]


def assert_only_our_headers(stage: Stage, played: Played) -> None:
    """The transcripts hold status, headers and more: the proxy adds its own headers to vLLM's, and nothing else."""
    direct, proxied = (found["transcript"] for found in (played.direct, played.proxied))
    calls = stage.calls(played)
    heads = [at for at, value in enumerate(direct) if isinstance(value, dict) and "content-type" in value]
    for at, call in zip(heads, calls, strict=True):
        session = stage.session(played).session_id
        ours = {"x-call-id": call.id, "x-session-id": session, "x-policy-version": "policy@0"}
        assert proxied[at] == direct[at] | ours
    rest = [[value for at, value in enumerate(found) if at not in heads] for found in (direct, proxied)]
    assert canonical(rest[0]) == canonical(rest[1])


def assert_recorded(stage: Stage, played: Played) -> list[Call]:
    """The session of ``played`` is on record, whole, with exact tokens and the right parents; gives its calls."""
    part = played.part
    session = stage.session(played)
    assert session.closed_by == ("ended" if part.ends else None)
    assert (session.session_by, session.scenario_by) == (_TAGGED_BY[part.tagging],) * 2
    assert session.split == part.headers.get("X-Split", "train")
    if part.tagging != "none":
        assert session.scenario == f"weather with {played.session.partition(':')[0]}"
    calls = stage.calls(played)
    rows = [stage.recorded.row(call.seq) for call in calls]
    numbers = {call.seq: number for number, call in enumerate(calls)}
    assert tuple(numbers.get(row["parent"]) for row in rows) == part.parents
    for call in calls:
        assert (call.outcome, call.not_trainable, call.version) == (CallOutcome.COMPLETE, None, 0)
        assert_tokens(stage, call)
    return calls


def assert_tokens(stage: Stage, call: Call) -> None:
    """The ids, the logprobs and why each choice ended are what the fake says of the same request."""
    row = stage.recorded.row(call.seq)
    said = stage.fake.capture(row["path"], json.loads(row["request"]))
    assert [list(call.prompt_ids)] == said["prompts"]
    found = [(choice.index, list(choice.ids), list(choice.logprobs), choice.finish) for choice in call.choices]
    assert found == [(one["index"], one["ids"], one["logprobs"], one["finish"]) for one in said["choices"]]
    assert all(ids for _, ids, _, _ in found)


def chain(length: int) -> tuple[int | None, ...]:
    """The parents of calls that continue each other."""
    return (None, *range(length - 1))
