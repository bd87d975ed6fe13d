"""The agents' command line against a small OpenAI-compatible server on a loopback port."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from scripts.agents import corridor, words
from scripts.agents.runner import Agent, run

ROOT = Path(__file__).parents[2]

Answer = Callable[[dict[str, Any]], tuple[int, object]]
"""Status and JSON body (or text) for a chat completion request."""


def say(text: str | None) -> tuple[int, object]:
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return 200, {"id": "c", "object": "chat.completion", "created": 1, "model": "agent", "choices": [choice]}


def refuse(_: dict[str, Any]) -> tuple[int, object]:
    """The server's own refusal (one that the SDK does not try again)."""
    return 400, {"error": {"message": "no such model", "type": "NotFoundError", "param": None, "code": 400}}


@dataclass
class FakeOpenAI:
    """An ASGI app that answers chat completions by ``answer`` and keeps what it was sent."""

    answer: Answer
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    url: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["path"] == "/v1/models":
            await self._send(send, 404, {"error": {"message": "not here"}})
            return
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body", False):
                break
        request = json.loads(body)
        self.requests.append(({name.decode(): value.decode() for name, value in scope["headers"]}, request))
        await self._send(send, *self.answer(request))

    async def _send(self, send: Send, status: int, body: object) -> None:
        kind, data = ("text/html", body) if isinstance(body, str) else ("application/json", json.dumps(body))
        headers = {"content-type": kind, **self.headers}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": str(data).encode()})


@contextmanager
def serving(answer: Answer, headers: dict[str, str] | None = None) -> Iterator[FakeOpenAI]:
    """A fake server on a free loopback port."""
    app = FakeOpenAI(answer, headers or {})
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield app
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No endpoint and no key from the outside."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def lines(output: str) -> list[dict[str, Any]]:
    """The sessions that a run printed."""
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("agent", [words.AGENT, corridor.AGENT], ids=["words", "corridor"])
def test_every_scenario_gets_its_attempts(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda _: say("Up")) as server:
        assert run(agent, ["--base-url", server.url, "--attempts", "2"]) == 0
    printed = capsys.readouterr()
    sessions = lines(printed.out)
    assert sorted(one["scenario"] for one in sessions) == sorted([*agent.scenarios] * 2)
    assert len({one["session"] for one in sessions}) == 12
    assert "12 sessions, mean reward" in printed.err


def test_a_session_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda _: say("Maybe"), {"x-policy-version": "policy@3"}) as server:
        assert run(words.AGENT, ["--base-url", server.url, "--attempts", "1", "--scenario", "yes-no-maybe-2"]) == 0
    [session] = lines(capsys.readouterr().out)
    [(headers, body)] = server.requests
    assert session == {
        "scenario": "yes-no-maybe-2",
        "session": headers["x-session-id"],
        "reward": 1.0,
        "turns": 1,
        "version": "policy@3",
        "answer": "Maybe",
    }
    assert headers["x-scenario-id"] == "yes-no-maybe-2"
    assert headers["x-session-end"] == "true"
    assert headers["authorization"] == "Bearer none"
    assert body == {
        "model": "agent",
        "messages": [{"role": "user", "content": words.SCENARIOS["yes-no-maybe-2"]}],
        "max_tokens": 6,
        "temperature": 1.0,
    }


def test_a_corridor_extends_its_history_by_the_answer_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = iter([" Up\n", None, "down <|x|>"])
    with serving(lambda _: say(next(said))) as server:
        assert run(corridor.AGENT, ["--base-url", server.url, "--attempts", "1", "--scenario", "corridor-1"]) == 0
    [session] = lines(capsys.readouterr().out)
    assert (session["turns"], session["version"], session["answer"]) == (3, None, "down <|x|>")
    assert session["reward"] == pytest.approx((1 + 0 + 0.5) / 3)
    histories = [body["messages"] for _, body in server.requests]
    for answer, earlier, later in zip([" Up\n", ""], histories, histories[1:], strict=False):
        assert later[:-2] == earlier
        assert later[-2] == {"role": "assistant", "content": answer}
    assert [headers.get("x-session-end") for headers, _ in server.requests] == [None, None, "true"]
    assert len({headers["x-session-id"] for headers, _ in server.requests}) == 1


def test_concurrency_is_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """With one place at a time the calls of a session follow each other."""
    with serving(lambda _: say("up")) as server:
        assert run(corridor.AGENT, ["--base-url", server.url, "--attempts", "2", "--concurrency", "1"]) == 0
    order = [headers["x-session-id"] for headers, _ in server.requests]
    assert all(len(set(order[start : start + 3])) == 1 for start in range(0, len(order), 3))


def test_a_failed_session_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    calls: dict[str, int] = defaultdict(int)

    def answer(body: dict[str, Any]) -> tuple[int, object]:
        place = body["messages"][0]["content"]
        calls[place] += 1
        return refuse(body) if "mine" in place and calls[place] == 2 else say("up")

    with serving(answer) as server:
        assert run(corridor.AGENT, ["--base-url", server.url, "--attempts", "1"]) == 0
    printed = capsys.readouterr()
    [failed] = [one for one in lines(printed.out) if "error" in one]
    assert failed["scenario"] == "corridor-3"
    assert (failed["turns"], failed["answer"], "reward" in failed) == (1, "up", False)
    assert "no such model" in failed["error"]
    assert "6 sessions" in printed.err
    assert "1 failed" in printed.err


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refuse, "BadRequestError"),
        (lambda _: (200, "<html>a proxy's page</html>"), "a proxy's page"),
        (lambda _: (200, {"object": "chat.completion"}), "no chat completion came"),
        (lambda _: (200, {"choices": []}), "no chat completion came"),
    ],
    ids=["refused", "page", "no choices", "empty choices"],
)
def test_when_all_fail_the_exit_code_says_so(answer: Answer, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(answer) as server:
        assert run(words.AGENT, ["--base-url", server.url, "--attempts", "1"]) == 1
    printed = capsys.readouterr()
    assert all(says in one["error"] for one in lines(printed.out))
    assert "6 sessions, no reward, 6 failed" in printed.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scenario", "poem"], "invalid choice"),
        (["--attempts", "0"], "not a whole number from 1"),
        (["--concurrency", "two"], "not a whole number from 1"),
        (["--base-url", "localhost:8400"], "is not a URL"),
        (["--base-url", "http://[::1"], "is not a URL"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(words.AGENT, arguments)
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


def program(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an agent as a user would."""
    command = [sys.executable, "-m", f"scripts.agents.{name}", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=240)


def test_the_program_takes_endpoint_and_key_from_the_environment() -> None:
    with serving(lambda _: say("no")) as server:
        ended = program(
            "words", "--attempts", "1", "--model", "gpt-4o", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="mine"
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == "6 sessions, mean reward 0.750\n"
    assert {headers["authorization"] for headers, _ in server.requests} == {"Bearer mine"}
    assert {body["model"] for _, body in server.requests} == {"gpt-4o"}


@pytest.mark.parametrize("name", ["words", "corridor"])
def test_an_endpoint_that_is_not_there_is_one_line(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    ended = program(name, "--base-url", url)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"cannot reach {url}: ")
    assert ended.stderr.count("\n") == 1
