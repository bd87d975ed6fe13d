"""Agents that name no session, or name it in the URL or the body: as they arrive at the running proxy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest

from proxy.tags import TAG_HEADERS
from storage import sessions
from storage.states import SessionState
from storage.types import Session, TaggedBy
from tests.fake_vllm import FakeVllm
from tests.proxy.conftest import StartProxy
from tests.proxy.running import CHAT, Recorded, RunningProxy, tags, until

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}]


@dataclass
class Agent:
    """Carries its whole history, on a connection of its own."""

    url: str
    task: str
    headers: dict[str, str] = field(default_factory=dict)
    stream: bool = False
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Of each call its id and its session."""

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
        self.messages.append({"role": "user", "content": self.task})

    def call(self, **headers: str) -> str:
        """The session of the call; its answer joins the history."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"model": "agent", "messages": self.messages, "stream": self.stream, "tools": TOOLS}
        answer = self.client.post(CHAT, json=body, headers=self.headers | names)
        assert answer.status_code == 200, answer.text
        self.messages.append(self._message(answer))
        for call in self.messages[-1].get("tool_calls", []):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "nothing"})
        if not self.messages[-1].get("tool_call_id"):
            self.messages.append({"role": "user", "content": "go on"})
        self.calls.append((answer.headers["x-call-id"], answer.headers["x-session-id"]))
        return self.calls[-1][1]

    def _message(self, answer: httpx.Response) -> dict[str, Any]:
        if not self.stream:
            message = answer.json()["choices"][0]["message"]
            return {name: value for name, value in message.items() if value not in (None, [])}
        whole: dict[str, Any] = {"role": "assistant", "content": ""}
        for line in answer.text.splitlines():
            if line.startswith("data: {"):
                delta = orjson.loads(line[6:])["choices"][0]["delta"]
                whole["content"] += delta.get("content") or ""
                for piece in delta.get("tool_calls", []):
                    if "id" in piece:
                        function = {"name": piece["function"]["name"], "arguments": ""}
                        whole.setdefault("tool_calls", []).append(
                            {"id": piece["id"], "type": "function", "function": function}
                        )
                    else:
                        whole["tool_calls"][-1]["function"]["arguments"] += piece["function"]["arguments"]
        return whole

    def move(self, url: str) -> None:
        """A new connection, to another address."""
        self.client.close()
        self.client = httpx.Client(base_url=url, timeout=60)

    def sessions(self) -> set[str]:
        return {session for _, session in self.calls}


Hire = Callable[..., Agent]


@pytest.fixture
def hire() -> Iterator[Hire]:
    """Makes agents, and closes their connections."""
    hired: list[Agent] = []

    def make(*arguments: Any, **options: Any) -> Agent:
        hired.append(Agent(*arguments, **options))
        return hired[-1]

    yield make
    for agent in hired:
        agent.client.close()


def closed(recorded: Recorded, name: str) -> Session:
    return until(lambda: recorded.closed(name))


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_without_tags_is_one_session_that_can_be_trained(
    proxy: RunningProxy, hire: Hire, recorded: Recorded, sid: str, stream: bool
) -> None:
    agent = hire(proxy.url, f"a task of {sid}", stream=stream)
    for _ in range(9):
        agent.call()
    agent.call(x_session_end="true")
    (name,) = agent.sessions()
    session = closed(recorded, name)
    assert (session.state, session.calls, session.session_by) == (SessionState.CLOSED, 10, TaggedBy.INFERRED)
    assert (session.scenario or "").startswith("auto-")
    assert name in {waiting.session_id for waiting in sessions.waiting(recorded.db)}
    # What follows the end is another session.
    assert agent.call() != name


def test_the_session_that_was_answered_can_be_named(
    proxy: RunningProxy, hire: Hire, recorded: Recorded, sid: str
) -> None:
    agent = hire(proxy.url, f"a task of {sid}")
    name = agent.call()
    assert agent.call(x_session_id=name) == name
    assert proxy.client.post(f"/v1/sessions/{name}/reward", json={"value": 1}).json()["waits"] is False
    assert len(recorded.calls(name, 2)) == 2


def test_parallel_agents_are_never_mixed(proxy: RunningProxy, hire: Hire, recorded: Recorded, sid: str) -> None:
    """Half of them have tasks of their own; those with one task are answered alike, and cannot be told apart."""
    agents = [hire(proxy.url, f"task {n if n < 4 else 'of all'} of {sid}", stream=n % 2 == 0) for n in range(8)]

    def work(agent: Agent) -> None:
        for _ in range(6):
            agent.call()

    threads = [threading.Thread(target=work, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = set.union(*(agent.sessions() for agent in agents))
    for name in names:
        proxy.client.post(f"/v1/sessions/{name}/end")
    found = {name: closed(recorded, name) for name in names}
    assert sum(session.calls for session in found.values()) == 48
    for agent in agents[:4]:
        assert len(agent.sessions()) == 1
        assert {found[name].state for name in agent.sessions()} == {SessionState.CLOSED}
    for name, session in found.items():
        owners = [agent for agent in agents if name in agent.sessions()]
        assert len(owners) == 1 or session.reason == "ambiguous"
    tasks = {found[name].scenario for agent in agents[4:] for name in agent.sessions()}
    assert len(tasks) == 1


def test_a_call_that_its_client_left_is_made_again_in_its_session(proxy: RunningProxy, hire: Hire, sid: str) -> None:
    agent = hire(proxy.url, f"a task of {sid}")
    name = agent.call()
    body = {"model": "agent", "messages": agent.messages, "stream": True, "tools": TOOLS}
    with proxy.client.stream("POST", CHAT, json=body, headers={"x-fake-fault": "stall:2"}) as stream:
        next(stream.iter_raw())
        assert stream.headers["x-session-id"] == name
    assert agent.call() == name


def test_a_session_goes_on_after_a_restart(start_proxy: StartProxy, hire: Hire) -> None:
    proxy = start_proxy()
    agents = [hire(proxy.url, f"task {n}", stream=n == 1) for n in range(2)]
    before = [[agent.call(), agent.call()] for agent in agents]
    proxy = start_proxy()
    for agent in agents:
        agent.move(proxy.url)
    after = [agent.call() for agent in agents]
    assert before == [[name, name] for name in after]
    assert len(set(after)) == 2


def test_tags_in_url_and_body(proxy: RunningProxy, recorded: Recorded, fake: FakeVllm, sid: str) -> None:
    body = {"model": "agent", "messages": [{"role": "user", "content": "x"}], "metadata": {"session_id": sid, "k": "v"}}
    sent = orjson.dumps(body)
    headers = {"content-type": "application/json"}
    answer = proxy.client.post("/scenario/my%20task/v1/chat/completions", content=sent, headers=headers)
    assert answer.headers["x-session-id"] == sid
    call = fake.calls()[-1]
    assert (call.path, call.body) == ("/v1/chat/completions", sent)
    recorded.calls(sid)
    session = recorded.session(sid)
    assert session is not None
    assert (session.scenario, session.session_by, session.scenario_by) == ("my task", TaggedBy.BODY, TaggedBy.URL)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 50}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_other_tags_work_in_every_dialect(
    proxy: RunningProxy, recorded: Recorded, fake: FakeVllm, path: str, body: dict[str, Any], stream: bool
) -> None:
    headers = {"x-agent": "planner", "x-split": "eval", "x-session-end": "true"}
    answer = proxy.client.post(path, json={"model": "agent", "stream": stream, **body}, headers=headers)
    assert answer.status_code == 200
    session = closed(recorded, answer.headers["x-session-id"])
    assert (session.state, session.split, session.closed_by) == (SessionState.CLOSED, "eval", "ended")
    (call,) = recorded.calls(session.session_id)
    assert recorded.row(call.seq)["agent"] == "planner"
    assert not {name for name, _ in fake.calls(path)[-1].headers} & TAG_HEADERS


def test_a_bad_tag_in_the_body_is_refused(proxy: RunningProxy, fake: FakeVllm) -> None:
    answer = proxy.chat(metadata={"session_id": 5})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "metadata.session_id is of type number; it must be a string"
    assert fake.calls() == []


def test_status_says_how_many_scenarios_nobody_shares(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    recorded = Recorded(proxy.data)
    for number in range(10):
        proxy.chat(headers=tags(f"shared {number}"))
        proxy.chat(headers=tags(f"alone {number}", scenario=f"{number}"))
    recorded.calls("alone 9")
    status = proxy.status()
    assert status["unshared_scenarios"] == {"sessions": 10, "of": 20, "share": 0.5}
    assert not [warning for warning in status["warnings"] if "scenario" in warning]
    proxy.chat(headers=tags("one more", scenario="one more"))
    recorded.calls("one more")
    warnings = [warning for warning in proxy.status()["warnings"] if "scenario" in warning]
    assert warnings == [
        "11 of the last 21 sessions have a scenario that no other session has: nothing can be compared with them; "
        "tag the sessions of one task with one X-Scenario-Id"
    ]
    recorded.db.close()
