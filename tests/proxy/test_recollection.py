"""Calls without tags after a restart: what the database has of a session is enough to go on with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.dialects import read_call
from storage.states import CallOutcome
from storage.types import TaggedBy
from tests.proxy.agents import Call, Proxy, call, chat_answer, ids
from tests.storage.recorded import Recorded, call_start
from tests.storage.turns import PATHS, Agent

Document = dict[str, Any]
DIALECTS = sorted(PATHS)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    kept = Recorded(tmp_path / "data", read_call)
    yield kept
    kept.abandon()


def record(
    recorded: Recorded, session: str, dialect: str, request: bytes, response: bytes, outcome: CallOutcome | None = None
) -> None:
    """A call of an inferred session."""
    start = call_start(
        session, dialect=dialect, path=PATHS[dialect], session_by=TaggedBy.INFERRED, scenario_by=TaggedBy.INFERRED
    )
    recorded.start(start, request)
    recorded.piece(start, response)
    recorded.finish(start, outcome or CallOutcome.COMPLETE)


def after_restart(recorded: Recorded) -> Proxy:
    recorded.take_in()
    proxy = Proxy(idle=1e12)  # what is recorded here began long ago
    proxy.inference.restore(recorded.db)
    return proxy


def asked(proxy: Proxy, dialect: str, request: bytes) -> str:
    return ids(call(proxy, "a", dialect, orjson.loads(request)))[0]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_session_goes_on_and_branches_where_it_was_answered(
    recorded: Recorded, dialect: str, *, streamed: bool
) -> None:
    turns = list(Agent(dialect, streamed).turns(7))
    for turn in turns[:5]:
        record(recorded, "s", dialect, turn.request, turn.response)
    proxy = after_restart(recorded)
    assert [asked(proxy, dialect, turn.request) for turn in turns[1:6]] == ["s"] * 5
    # Its first call again goes on from nothing.
    assert asked(proxy, dialect, turns[0].request) != "s"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_body_is_read(recorded: Recorded, dialect: str) -> None:
    turns = list(Agent(dialect, streamed=True).turns(6))
    for turn in turns[:5]:
        record(recorded, "s", dialect, turn.request, turn.response)
    recorded.take_in()
    recorded.ingestion._db.execute("UPDATE calls SET request = x'00', response = x'00'")
    assert asked(after_restart(recorded), dialect, turns[5].request) == "s"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_of_sessions_alike_the_one_whose_answer_is_open_goes_on(recorded: Recorded, dialect: str) -> None:
    turns = list(Agent(dialect, streamed=False).turns(4))
    for session, number in (("s", 3), ("t", 2)):
        for turn in turns[:number]:
            record(recorded, session, dialect, turn.request, turn.response)
    proxy = after_restart(recorded)
    assert asked(proxy, dialect, turns[2].request) == "t"
    assert proxy.ambiguous() == set()


def test_an_answer_that_broke_off_is_passed_over_but_what_continues_it_is_not(recorded: Recorded) -> None:
    first, second, third, fourth = Agent("chat", streamed=False).turns(4)
    record(recorded, "s", "chat", first.request, first.response)
    record(recorded, "s", "chat", second.request, second.response, CallOutcome.TRUNCATED)
    record(recorded, "s", "chat", third.request, third.response)
    proxy = after_restart(recorded)
    assert asked(proxy, "chat", fourth.request) == "s"


def test_after_a_compaction_the_tool_calls_tell(recorded: Recorded) -> None:
    tool = {"id": "call_7", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    request = {"messages": [{"role": "user", "content": "look it up"}]}
    answer = chat_answer({"role": "assistant", "content": None, "tool_calls": [tool]})
    record(recorded, "s", "chat", orjson.dumps(request), orjson.dumps(answer))
    used = {"type": "tool_use", "id": "toolu_7", "name": "search", "input": {"q": "x"}}
    message = {"id": "m", "type": "message", "role": "assistant", "content": [used]}
    record(recorded, "t", "messages", orjson.dumps(request), orjson.dumps(message))
    shell = {"type": "local_shell_call", "call_id": "shell_7", "action": {}}
    record(recorded, "u", "responses", b'{"input": "look"}', orjson.dumps({"id": "resp_7", "output": [shell]}))
    proxy = after_restart(recorded)
    result = {"role": "tool", "tool_call_id": "call_7", "content": "found"}
    assert asked(proxy, "chat", orjson.dumps({"messages": [{"role": "user", "content": "so far"}, result]})) == "s"
    block = {"type": "tool_result", "tool_use_id": "toolu_7", "content": "found"}
    assert asked(proxy, "messages", orjson.dumps({"messages": [{"role": "user", "content": [block]}]})) == "t"
    output = {"type": "local_shell_call_output", "call_id": "shell_7", "output": "found"}
    assert asked(proxy, "responses", orjson.dumps({"input": [output]})) == "u"


def test_a_response_is_continued_by_its_name(recorded: Recorded) -> None:
    def item(text: str) -> Document:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    previous = None
    for name in ("resp_1", "resp_2"):
        request = {"instructions": "Be brief.", "input": "go on", "previous_response_id": previous}
        record(recorded, "s", "responses", orjson.dumps(request), orjson.dumps({"id": name, "output": [item(name)]}))
        previous = name
    proxy = after_restart(recorded)
    for name in ("resp_2", "resp_1"):
        assert asked(proxy, "responses", orjson.dumps({"input": "go on", "previous_response_id": name})) == "s"
    assert asked(proxy, "responses", orjson.dumps({"input": "go on", "previous_response_id": "resp_3"})) != "s"


def test_a_prompt_that_is_sent_again_and_one_of_two_are_no_trouble(recorded: Recorded) -> None:
    def completion(prompt: Any, *texts: str) -> None:
        choices = [{"index": n, "text": text} for n, text in enumerate(texts)]
        record(recorded, "s", "completions", orjson.dumps({"prompt": prompt}), orjson.dumps({"choices": choices}))

    completion("Q: 1? A:", " one")
    completion("Q: 1? A:", " two")
    completion(["Q: 1? A:", "Q: 2? A:"], " one", " two")
    proxy = after_restart(recorded)
    made: list[Call] = [
        call(proxy, "a", "completions", {"prompt": f"Q: 1? A: {text}\nQ: 3? A:"}) for text in ("one", "two", "three")
    ]
    assert [name == "s" for name in ids(*made)] == [True, True, False]
