"""Which session a call belongs to that names none, in the dialects beside chat."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proxy.agents import Call, Proxy, call, ids

Document = dict[str, Any]


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


def responses_answer(response_id: str, text: str) -> Document:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {
        "type": "message",
        "id": f"msg_{response_id}",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }
    return {"id": response_id, "object": "response", "output": [item]}


def test_responses_are_continued_by_their_ids(proxy: Proxy) -> None:
    made: list[list[Call]] = [[], []]
    previous: list[str | None] = [None, None]
    for turn in range(3):
        for n in range(2):
            document = {"model": "m", "input": "go on", "previous_response_id": previous[n]}
            made[n].append(call(proxy, f"a{n}", "responses", document))
            made[n][-1].answer(responses_answer(f"resp_{turn}_{n}", "the same answer"))
            previous[n] = f"resp_{turn}_{n}"
    assert [len(set(ids(*calls))) for calls in made] == [1, 1]
    assert ids(made[0][0]) != ids(made[1][0])
    assert proxy.ambiguous() == set()


def test_responses_are_continued_by_their_items(proxy: Proxy) -> None:
    items: list[Document] = [{"role": "user", "content": "look it up"}]
    first = call(proxy, "a", "responses", {"model": "m", "instructions": "Be brief.", "input": [*items]})
    called = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "search", "arguments": '{"q":"x"}'}
    first.answer({"id": "resp_1", "object": "response", "output": [called]})
    items += [called, {"type": "function_call_output", "call_id": "call_1", "output": "found"}]
    second = call(proxy, "a", "responses", {"model": "m", "instructions": "Be brief.", "input": items})
    assert ids(second) == ids(first)


@pytest.mark.parametrize("second", ["Q: 1? A: one\nQ: 2? A:", "Q: 1? A: one"])
def test_a_lengthened_prompt_goes_on(proxy: Proxy, second: str) -> None:
    first = call(proxy, "a", "completions", {"model": "m", "prompt": "Q: 1? A:"})
    other = call(proxy, "b", "completions", {"model": "m", "prompt": "Q: 3? A:"})
    for made, text in ((first, " one"), (other, " three")):
        made.answer({"id": "cmpl-1", "choices": [{"index": 0, "text": text}]})
    assert ids(call(proxy, "a", "completions", {"model": "m", "prompt": second})) == ids(first)
    assert ids(call(proxy, "c", "completions", {"model": "m", "prompt": "Q: 1? A: two\nQ: 2? A:"})) != ids(first)
    assert len(proxy.sessions()) == 3


def test_an_empty_completion_has_nothing_to_go_on_from(proxy: Proxy) -> None:
    prompt = {"model": "m", "prompt": "Q: 1? A:"}
    made = []
    for _ in range(2):
        made.append(call(proxy, "a", "completions", prompt))
        made[-1].answer({"id": "cmpl-1", "choices": [{"index": 0, "text": ""}]})
    assert len(set(ids(*made))) == 2


def test_anthropic_messages_are_continued(proxy: Proxy) -> None:
    messages: list[Document] = [{"role": "user", "content": [{"type": "text", "text": "look it up"}]}]
    body = {"model": "m", "max_tokens": 9, "system": "Be brief."}
    made = []
    for turn in range(3):
        # The mark moves on to the newest message, as Claude Code sends it.
        marked = [
            *messages[:-1],
            {**messages[-1], "content": [{**messages[-1]["content"][0], "cache_control": {"type": "ephemeral"}}]},
        ]
        made.append(call(proxy, "a", "messages", {**body, "messages": marked}))
        used = {"type": "tool_use", "id": f"toolu_{turn}", "name": "search", "input": {"q": "x", "n": turn}}
        content = [{"type": "text", "text": "I look."}, used]
        made[-1].answer({"id": "msg_1", "type": "message", "role": "assistant", "content": content})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": "found"}
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    assert len(set(ids(*made))) == 1
    assert proxy.ambiguous() == set()
