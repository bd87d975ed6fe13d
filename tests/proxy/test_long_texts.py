"""Pictures and files in a conversation: they tell conversations apart, and are never written or digested anew."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.conversations import brief
from proxy.dialects import BY_NAME
from proxy.scenarios import Scenarios
from tests.proxy.agents import Proxy, call, chat_answer, ids

Document = dict[str, Any]

PICTURE, OTHER = "a" * 100_000, "a" * 99_999 + "b"
FORMS: dict[str, Any] = {
    "text": lambda data: data,
    "text part": lambda data: [{"type": "text", "text": data}],
    "picture": lambda data: [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "high"}},
    ],
    "file": lambda data: [{"type": "file", "file": {"file_data": data}}],
}

SCENARIOS = {
    "text": "1ff65064376d",
    "text part": "acdc35f2bf56",
    "picture": "5f329c10afa7",
    "file": "c43a692e6a9f",
}
"""Of a user's message that is nothing but the form with `PICTURE`."""


def talk(proxy: Proxy, content: Any, answer: str = "I see.") -> str:
    """Two turns about ``content``; the session of both."""
    messages: list[Document] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    first = call(proxy, "a", "chat", {"messages": messages})
    first.answer(chat_answer({"role": "assistant", "content": answer}))
    again = orjson.loads(orjson.dumps([*messages, {"role": "assistant", "content": answer}]))
    second = call(proxy, "a", "chat", {"messages": [*again, {"role": "user", "content": "go on"}]})
    (session,) = set(ids(first, second))
    return session


@pytest.mark.parametrize("form", FORMS)
def test_a_conversation_goes_on_with_what_it_holds_and_with_nothing_else(form: str) -> None:
    proxy = Proxy()
    assert talk(proxy, FORMS[form](PICTURE)) != talk(proxy, FORMS[form](OTHER))
    assert proxy.ambiguous() == set()
    long_answer = talk(proxy, "write a book", PICTURE)
    assert talk(proxy, "write a book", OTHER) != long_answer


@pytest.mark.parametrize("form", FORMS)
def test_of_a_long_text_little_is_left_to_digest(form: str) -> None:
    assert len(orjson.dumps(brief(FORMS[form](PICTURE), 4))) < 200
    assert brief(FORMS[form]("short"), 4) == FORMS[form]("short")


@pytest.mark.parametrize("form", FORMS)
def test_the_scenario_is_the_same_in_every_process(form: str) -> None:
    """Python's hash of a text is not: what stands for a long one is kept out of the scenario's digest."""

    def scenario(scenarios: Scenarios, data: str) -> str:
        messages = [{"role": "user", "content": FORMS[form](data)}]
        return scenarios.of(BY_NAME["chat"].asked({"messages": messages}))

    known = Scenarios()
    assert scenario(known, PICTURE) == scenario(known, PICTURE) == scenario(Scenarios(), PICTURE)
    assert scenario(known, PICTURE) != scenario(known, OTHER)
    assert scenario(known, PICTURE) == f"auto-{SCENARIOS[form]}"
