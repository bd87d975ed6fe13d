"""The scenario of a call that names none."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest

from proxy.dialects import BY_NAME
from proxy.scenarios import Scenarios

TOOLS = [{"type": "function", "function": {"name": "search", "description": "Searches.", "parameters": {}}}]


def scenario(user: Any = "Book a table.", system: str = "Be brief.", tools: Any = TOOLS, *more: Any) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}, *more]
    body = orjson.dumps({"messages": messages, "tools": tools})
    return Scenarios().of(BY_NAME["chat"].read(body, b"", False))


def test_it_is_a_name() -> None:
    assert re.fullmatch(r"auto-[0-9a-f]{12}", scenario())
    assert scenario() == scenario()


def test_what_comes_later_does_not_matter() -> None:
    later = [{"role": "assistant", "content": "When?"}, {"role": "user", "content": "At eight."}]
    assert scenario("Book a table.", "Be brief.", TOOLS, *later) == scenario()


@pytest.mark.parametrize(
    "other",
    [
        scenario("Book a room."),
        scenario(system="Be long."),
        scenario(tools=[]),
        scenario("Book a table for 4."),
        scenario("Book table 12345."),
        scenario([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]),
        scenario([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}]),
    ],
)
def test_another_task_is_another_scenario(other: str) -> None:
    assert other != scenario()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("2026-11-30", "2027-01-01"),
        ("2026-11-30T23:58:01.123Z", "2026-12-01T00:00:00Z"),
        ("2026-11-30T23:58:01+01:00", "2026-12-01T00:00:00-05:00"),
        ("2026-11-30 23:58", "2026-12-01 7:05"),
        ("2026/11/30", "2026/1/3"),
        ("30.11.2026", "1.12.26"),
        ("11/30/2026", "1/2/2026"),
        ("November 30, 2026", "May 1st, 2027"),
        ("Monday, November 30, 2026", "Tuesday, December 1, 2026"),
        ("Mon, 30 Nov 2026 23:58:01 GMT", "Tue, 1 Dec 2026 07:00:00 GMT"),
        ("30 November 2026 at 11:58 PM", "1 December 2026 at 7:01 AM"),
        ("23:58:01", "07:00:59"),
        ("1796083081", "1796083999"),
        ("1796083081.25", "1796083999.75"),
        ("4821337", "900000001"),
        ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "123E4567-E89B-12D3-A456-426614174000"),
        ("019ad6f0c3a24d9f8f6f3c5b7a9d1e2f", "0af7651916cd43dd8448eb211c80319c"),
    ],
)
@pytest.mark.parametrize("where", ["user", "system", "tools", "parts"])
def test_what_differs_from_run_to_run_is_taken_out(one: str, two: str, where: str) -> None:
    def found(value: str) -> str:
        text = f"It is ({value}).\n{value}: run={value}, go"
        if where == "tools":
            return scenario(tools=[{"type": "function", "function": {"name": "f", "description": text}}])
        if where == "parts":
            return scenario([{"type": "text", "text": text}])
        return scenario(text) if where == "user" else scenario(system=text)

    assert found(one) == found(two)
    assert found(one) != found("otherwise")


@pytest.mark.parametrize(("one", "two"), [("in May", "in June"), ("at 8:15", "at 9:15"), ("1.5 or 2.5", "1.5 or 3.5")])
def test_what_may_be_the_task_itself_stays(one: str, two: str) -> None:
    assert scenario(f"Book a table {one}.") != scenario(f"Book a table {two}.")


def test_nothing_is_too_strange_for_a_digest() -> None:
    nested: Any = "x"
    for _ in range(400):
        nested = [nested]
    deep = [{"type": "function", "function": {"name": "f", "parameters": nested}}]
    for name, body in (
        ("chat", {"messages": None}),
        ("chat", {"messages": [{"role": 5, "content": {"a": 1}}], "tools": deep}),
        ("chat", {"messages": [{"role": "user", "content": "\ud800"}]}),
        ("responses", {}),
        ("completions", {"prompt": [1, 2, 3]}),
        ("messages", []),
    ):
        assert Scenarios().of(BY_NAME[name].read(json.dumps(body).encode(), b"", False)).startswith("auto-")


def test_dialects_agree() -> None:
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Book a table."}]}
    messages = {"system": "Be brief.", "messages": [{"role": "user", "content": "Book a table."}]}
    responses = {"instructions": "Be brief.", "input": "Book a table."}
    found = {
        Scenarios().of(BY_NAME[name].read(orjson.dumps(body), b"", False))
        for name, body in (("chat", chat), ("messages", messages), ("responses", responses))
    }
    assert len(found) == 1


def test_only_the_newest_openings_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.scenarios._REMEMBERED", 10)
    scenarios = Scenarios()
    for number in range(50):
        body = orjson.dumps({"messages": [{"role": "user", "content": f"task {number}"}]})
        scenarios.of(BY_NAME["chat"].read(body, b"", False))
    assert len(scenarios._digests) == 10
