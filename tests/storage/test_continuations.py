"""Calls whose request does not begin with the messages of the call that they continue."""

from __future__ import annotations

import array
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.dialects import read_call
from storage import calls
from storage.calls import Message
from tests.storage.recorded import Recorded, call_start, capture
from tests.storage.test_calls import assistant, parents, seqs, user


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Recorded]:
    kept = Recorded(tmp_path / "data", read_call)
    yield kept
    kept.abandon()


def record(kept: Recorded, dialect: str, request: dict[str, Any], response: dict[str, Any], ids: list[int]) -> bytes:
    start = replace(call_start("s"), dialect=dialect)
    body = json.dumps(request).encode()
    kept.start(start, body)
    kept.piece(start, json.dumps(response).encode())
    kept.captured(start, capture(ids, [7, 8]))
    kept.finish(start)
    return body


def respond(kept: Recorded, number: int, before: int | None = None, **request: Any) -> None:
    """A response with the id ``number``, which continues the one with the id ``before``."""
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"a{number}"}]}
    asked = {"input": f"q{number}", "previous_response_id": before and f"resp_{before}", **request}
    record(kept, "responses", asked, {"id": f"resp_{number}", "output": [message]}, [1])


def transcripts(kept: Recorded) -> list[list[Message]]:
    return [calls.transcript(kept.db, seq)[0] for seq in seqs(kept)]


def test_a_name_that_is_no_utf8_names_nothing_and_refuses_nothing(kept: Recorded) -> None:
    named = b'{"id": "resp_\\ud800", "output": []}'
    asked = b'{"input": "q", "previous_response_id": "resp_\\udfff"}'
    start = replace(call_start("s"), dialect="responses")
    kept.start(start, asked)
    kept.piece(start, named)
    kept.finish(start)
    kept.take_in()
    assert kept.ingestion.refused == 0
    (seq,) = seqs(kept)
    assert (calls.body(kept.db, seq), calls.body(kept.db, seq, "response")) == (asked, named)


@pytest.mark.parametrize("restart", [False, True], ids=["one process", "restarted"])
def test_a_response_continues_the_one_that_it_names(kept: Recorded, restart: bool) -> None:
    respond(kept, 1, instructions="Be brief.")
    respond(kept, 2, 1, instructions="Be brief.")
    kept.take_in()
    if restart:
        kept.restart()
    respond(kept, 3, 2, instructions="Be loud.")
    respond(kept, 4, 1)  # a branch
    respond(kept, 5, 99)  # nobody knows it: nothing is made up
    kept.take_in()
    assert parents(kept) == [None, 0, 1, 0, None]
    one = [{"role": "system", "content": "Be brief."}, user("q1"), assistant("a1")]
    two = [*one, user("q2"), assistant("a2")]
    loud = {"role": "system", "content": "Be loud."}
    assert transcripts(kept) == [
        one,
        two,
        [*two, loud, user("q3"), assistant("a3")],
        [*one, user("q4"), assistant("a4")],
        [user("q5"), assistant("a5")],
    ]


def test_a_response_of_another_session_is_no_parent(kept: Recorded) -> None:
    respond(kept, 1)
    kept.take_in()
    kept.db.execute("UPDATE sessions SET session_id = 'other'")
    kept.restart()
    respond(kept, 2, 1)
    kept.take_in()
    assert parents(kept) == [None, None]


@pytest.mark.parametrize("again", [10**9, 7], ids=["one process", "seven calls a process"])
@pytest.mark.parametrize("form", [str, list], ids=["text", "ids"])
def test_fifty_lengthened_prompts_decode_exactly_at_twice_their_content(kept: Recorded, again: int, form: type) -> None:
    prompt: list[int] = []
    sent: list[tuple[bytes, list[int]]] = []
    for turn in range(50):
        prompt = [*prompt, *range(100 * turn, 100 * turn + 100)]
        text = "".join(f"{token}\n" for token in prompt) if form is str else prompt
        body = record(kept, "completions", {"prompt": text}, {"choices": [{"index": 0, "text": f"a{turn}"}]}, prompt)
        sent.append((body, prompt))
        if turn % again == again - 1:
            kept.take_in()
            kept.restart()
    kept.take_in()
    assert parents(kept) == [None, *range(49)]
    for seq, (body, ids) in zip(seqs(kept), sent, strict=True):
        assert calls.body(kept.db, seq) == body
        assert list(array.array("i", calls.body(kept.db, seq, "prompt_ids"))) == ids
    stored = kept.db.number("SELECT sum(length(request) + length(prompt_ids)) FROM calls")
    assert stored <= 2.1 * (len(sent[-1][0]) + 4 * len(prompt))
    shown = kept.db.number("SELECT sum(length(input)) FROM calls")
    assert shown <= 2 * len(sent[-1][0])


@pytest.mark.parametrize("restart", [False, True], ids=["one process", "restarted"])
def test_a_lengthened_prompt_shows_what_is_new(kept: Recorded, restart: bool) -> None:
    prompts = ["Hi", "Hi there", "Hi there, you", "Hi th", "Other", ["Hi", "Hi there"], "Hi there, you"]
    for number, prompt in enumerate(prompts):
        record(kept, "completions", {"prompt": prompt}, {"choices": [{"index": 0, "text": "a"}]}, [1])
        if restart and number in (1, 2):
            kept.take_in()
            kept.restart()
    kept.take_in()
    assert parents(kept) == [None, 0, 1, 0, None, 0, 2]
    shown = [[m["content"] for m in messages[:-1]] for messages in transcripts(kept)]
    whole = ["Hi", " there", ", you"]
    assert shown == [["Hi"], ["Hi", " there"], whole, ["Hi", " th"], ["Other"], ["Hi", "Hi there"], whole]
