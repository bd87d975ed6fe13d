"""Which session a call belongs to that names none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.inference import Inferred
from storage.types import TaggedBy
from tests.proxy.agents import Call, ChatAgent, Proxy, call, chat_answer, ids

Document = dict[str, Any]


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


def test_an_agent_of_several_turns_is_one_session(proxy: Proxy) -> None:
    agent = ChatAgent(proxy, "a")
    first = agent.ask("one")
    agent.hear(first, "first answer")
    second = agent.ask("two")
    agent.hear(second, "second answer")
    third = agent.ask("three")
    assert len(set(ids(first, second, third))) == 1
    assert ids(first)[0].startswith("auto-")
    assert len(ids(first)[0]) == len("auto-") + 32
    assert first.found.session_by is TaggedBy.INFERRED
    assert proxy.ambiguous() == set()


def test_a_tool_loop_is_one_session(proxy: Proxy) -> None:
    agent = ChatAgent(proxy, "a")
    made = [agent.ask("look it up")]
    for turn in range(20):
        agent.hear_call(made[-1], "search", f"call_{turn}", '{"q":  "x", "n": 1}')
        made.append(agent.call())
    agent.hear(made[-1], "found")
    assert len(set(ids(*made))) == 1


def test_a_stream_is_an_answer(proxy: Proxy) -> None:
    agent = ChatAgent(proxy, "a")
    first = agent.ask("one", stream=True)
    first.answer_frames(
        [
            {"choices": [{"index": 0, "delta": delta}]}
            for delta in ({"role": "assistant", "content": ""}, {"content": "an "}, {"content": "answer"})
        ]
    )
    agent.messages.append({"role": "assistant", "content": "an answer"})
    assert ids(agent.ask("two")) == ids(first)


def test_each_of_several_choices_can_be_continued(proxy: Proxy) -> None:
    agent = ChatAgent(proxy, "a")
    first = agent.ask("one", n=3)
    first.answer(chat_answer(*({"role": "assistant", "content": text} for text in ("x", "y", "z"))))
    agent.messages.append({"role": "assistant", "content": "y"})
    assert ids(agent.ask("two")) == ids(first)


@pytest.mark.parametrize(
    ("answered", "carried"),
    [
        ({"content": "yes", "reasoning": "hm"}, {"content": "yes"}),
        ({"content": " yes\n"}, {"content": "yes"}),
        ({"content": "<think>hm</think>\n\nyes"}, {"content": "yes"}),
        ({"content": "yes"}, {"content": [{"type": "text", "text": "yes"}]}),
        ({"content": "yes", "tool_calls": []}, {"content": "yes", "refusal": None, "name": None, "audio": None}),
        ({"content": None, "refusal": "no"}, {"content": "", "refusal": "no"}),
    ],
)
def test_clients_carry_an_answer_on_in_their_own_way(proxy: Proxy, answered: Document, carried: Document) -> None:
    agent = ChatAgent(proxy, "a")
    first = agent.ask("one")
    first.answer(chat_answer({"role": "assistant", **answered}))
    agent.messages.append({"role": "assistant", **carried})
    assert ids(agent.ask("two")) == ids(first)


def test_parallel_agents_with_one_system_prompt_and_their_own_tasks(proxy: Proxy) -> None:
    agents = [ChatAgent(proxy, f"a{n}") for n in range(8)]
    made = [[agent.ask(f"task {n}")] for n, agent in enumerate(agents)]
    for turn in range(3):
        for agent, calls in zip(agents, made, strict=True):
            agent.hear(calls[-1], f"answer {turn}")
            calls.append(agent.ask("go on"))
    assert [len(set(ids(*calls))) for calls in made] == [1] * 8
    assert len(proxy.sessions()) == 8
    assert proxy.ambiguous() == set()


def test_parallel_agents_of_one_task_are_told_apart_by_their_answers(proxy: Proxy) -> None:
    agents = [ChatAgent(proxy, f"a{n}") for n in range(8)]
    first = [agent.ask("the task") for agent in agents]
    for n, (agent, made) in enumerate(zip(agents, first, strict=True)):
        agent.hear(made, f"plan {n}")
    second = [agent.ask("go on") for agent in agents]
    assert ids(*second) == ids(*first)
    assert len(set(ids(*first))) == 8
    assert proxy.ambiguous() == set()
    assert len({made.found.scenario for made in first}) == 1


def test_parallel_agents_of_one_task_are_told_apart_by_their_tool_calls(proxy: Proxy) -> None:
    agents = [ChatAgent(proxy, f"a{n}") for n in range(8)]
    first = [agent.ask("the task") for agent in agents]
    for n, (agent, made) in enumerate(zip(agents, first, strict=True)):
        agent.hear_call(made, "search", f"call_{n}")
    assert ids(*[agent.call() for agent in agents]) == ids(*first)
    assert proxy.ambiguous() == set()


def test_agents_that_are_alike_in_everything_are_ambiguous(proxy: Proxy) -> None:
    agents = [ChatAgent(proxy, f"a{n}", options={"port": n}) for n in range(3)]
    other = ChatAgent(proxy, "other")
    first = [agent.ask("the task") for agent in agents]
    apart = other.ask("another task")
    other.hear(apart, "the same answer")
    for agent, made in zip(agents, first, strict=True):
        agent.hear(made, "the same answer")
    second = agents[1].ask("go on")
    assert set(second.found.ambiguous) == set(ids(*first))
    # It stands where its connection was last seen, and no session more is made.
    assert ids(second) == ids(first[1])
    assert ids(other.ask("go on")) == ids(apart)
    third = agents[1]
    third.hear(second, "more")
    assert third.ask("and on").found.ambiguous == (second.found.session_id,)
    assert not set(ids(apart)) & proxy.ambiguous()


def test_the_same_task_again_is_another_session(proxy: Proxy) -> None:
    """One agent that runs a task three times, one run after another, and is answered alike each time."""
    runs = []
    for run in range(3):
        agent = ChatAgent(proxy, f"run {run}")
        made = [agent.ask("the task")]
        for _ in range(3):
            agent.hear_call(made[-1], "search", "call_0")
            made.append(agent.call())
        agent.hear(made[-1], "found")
        runs.append(set(ids(*made)))
    assert [len(run) for run in runs] == [1, 1, 1]
    assert len(set.union(*runs)) == 3
    assert proxy.ambiguous() == set()


def test_a_sub_agent_in_between_has_a_session_of_its_own(proxy: Proxy) -> None:
    main, sub = ChatAgent(proxy, "main"), ChatAgent(proxy, "sub", system="You search.")
    first = main.ask("the task")
    main.hear_call(first, "delegate", "call_1")
    inner = [sub.ask("a part of the task")]
    sub.hear_call(inner[0], "search", "call_2")
    inner.append(sub.call())
    sub.hear(inner[1], "done")
    assert ids(main.call()) == ids(first)
    assert len(set(ids(*inner))) == 1
    assert ids(*inner[:1]) != ids(first)
    assert inner[0].found.scenario != first.found.scenario
    assert proxy.ambiguous() == set()


def test_a_failed_call_is_made_again_in_its_session(proxy: Proxy) -> None:
    agent, twin = ChatAgent(proxy, "a"), ChatAgent(proxy, "twin")
    first = agent.ask("one")
    agent.hear(first, "answer")
    failed = agent.ask("two")
    failed.fail()
    assert ids(agent.call()) == ids(first) == ids(failed)
    # While nobody knows whether it is made again, a twin at the same point may be either.
    agent.call().fail()
    hers = twin.ask("one")
    twin.hear(hers, "answer")
    assert ids(twin.ask("two")) == ids(hers)


def test_a_call_that_failed_leaves_its_forerunner_open(proxy: Proxy) -> None:
    agent, twin = ChatAgent(proxy, "a"), ChatAgent(proxy, "twin")
    first, hers = agent.ask("one"), twin.ask("one")
    agent.hear(first, "answer")
    agent.ask("two").fail()
    twin.hear(hers, "answer")
    assert set(twin.ask("two").found.ambiguous) == set(ids(first, hers))


def test_an_answer_that_its_client_did_not_wait_for_may_have_been_read(proxy: Proxy) -> None:
    agent, twin = ChatAgent(proxy, "a"), ChatAgent(proxy, "twin")
    first, hers = agent.ask("one"), twin.ask("one")
    agent.hear(first, "answer")
    left = agent.ask("two")
    left.answer(chat_answer({"role": "assistant", "content": "more"}), delivered=False)
    read = [*agent.messages, {"role": "assistant", "content": "more"}, {"role": "user", "content": "three"}]
    assert ids(call(proxy, "a", "chat", {"messages": read})) == ids(first)
    twin.hear(hers, "answer")
    assert set(agent.call().found.ambiguous) == set(ids(first, hers))


def test_an_answer_that_failed_was_never_given(proxy: Proxy) -> None:
    agent = ChatAgent(proxy, "a")
    first = agent.ask("one")
    first.fail()
    agent.messages.append({"role": "assistant", "content": "answer"})
    assert ids(agent.ask("two")) != ids(first)


def test_a_compacted_history_is_known_by_its_tool_calls(proxy: Proxy) -> None:
    agent = ChatAgent(proxy, "a")
    first = agent.ask("one")
    agent.hear_call(first, "search", "call_1")
    second = agent.call()
    agent.hear_call(second, "search", "call_2")
    agent.messages[1:3] = [{"role": "user", "content": "so far: nothing found"}]
    assert ids(agent.call()) == ids(first) == ids(second)


def test_a_history_compacted_to_a_summary_is_another_session(proxy: Proxy) -> None:
    agent = ChatAgent(proxy, "a")
    first = agent.ask("one")
    agent.hear(first, "answer")
    agent.messages[1:] = [{"role": "user", "content": "so far: nothing found"}]
    assert ids(agent.call()) != ids(first)
    assert proxy.ambiguous() == set()


def test_ids_of_tool_calls_that_repeat_decide_nothing(proxy: Proxy) -> None:
    agents = [ChatAgent(proxy, f"a{n}") for n in range(2)]
    for n, agent in enumerate(agents):
        agent.hear_call(agent.ask(f"task {n}"), "search", "functions.search:0")
    known = set(proxy.sessions())
    agents[0].messages[0]["content"] = "Another system prompt."
    made = agents[0].call()
    assert made.found.session_id not in known
    assert made.found.ambiguous == (made.found.session_id,)
    agents[1].call()
    proxy.assert_never_mixed()


def test_results_of_two_sessions_together_belong_to_neither(proxy: Proxy) -> None:
    agents = [ChatAgent(proxy, f"a{n}") for n in range(2)]
    for n, agent in enumerate(agents):
        agent.hear_call(agent.ask(f"task {n}"), "search", f"call_{n}")
    reviewer = ChatAgent(proxy, "reviewer", system="You review.")
    reviewer.messages += agents[0].messages[2:] + agents[1].messages[2:]
    made = reviewer.ask("which is better?")
    assert made.found.ambiguous == (made.found.session_id,)
    assert len(proxy.sessions()) == 3


def test_an_ended_session_is_not_continued(proxy: Proxy) -> None:
    agent = ChatAgent(proxy, "a")
    first = agent.ask("one")
    agent.hear(first, "answer")
    assert first.found.turn is not None
    proxy.ended.add(first.found.turn.session.identity)
    second = agent.ask("two")
    assert ids(second) != ids(first)
    assert proxy.ambiguous() == set()


def test_idle_sessions_stand_back() -> None:
    proxy = Proxy(idle=0.0)
    old, new = ChatAgent(proxy, "old"), ChatAgent(proxy, "new")
    first = old.ask("hi")
    old.hear(first, "hello")
    assert ids(old.ask("again")) == ids(first)  # alone, it goes on however late it is
    other = new.ask("hi")
    new.hear(other, "hello")
    # Both answers are old: whose it is cannot be told, and the finished ones stay what they are.
    lost = new.ask("again")
    assert lost.found.ambiguous == (lost.found.session_id,)


def test_sessions_of_two_keys_have_nothing_in_common(proxy: Proxy) -> None:
    mine, theirs = ChatAgent(proxy, "a", options={"owner": "me"}), ChatAgent(proxy, "b", options={"owner": "them"})
    made = [agent.ask("one") for agent in (mine, theirs)]
    for agent, first in zip((mine, theirs), made, strict=True):
        agent.hear_call(first, "search", "call_1")
    assert ids(mine.call(), theirs.call()) == ids(*made)
    assert len(set(ids(*made))) == 2
    assert proxy.ambiguous() == set()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"x-scenario-id": "c1"}, {"x-scenario-id": "c2"}),
        ({"x-agent": "planner"}, {"x-agent": "critic"}),
        ({"x-split": "eval"}, {}),
    ],
)
def test_tags_tell_apart_what_is_alike(proxy: Proxy, one: dict[str, str], two: dict[str, str]) -> None:
    agents = [ChatAgent(proxy, f"a{n}", options={"headers": headers}) for n, headers in enumerate((one, two))]
    first = [agent.ask("the task") for agent in agents]
    for agent, made in zip(agents, first, strict=True):
        agent.hear(made, "answer")
    assert ids(*[agent.ask("go on") for agent in agents]) == ids(*first)
    proxy.assert_never_mixed()


def test_fields_are_found_each_for_itself(proxy: Proxy) -> None:
    def found(**headers: str) -> Inferred:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return ChatAgent(proxy, "a", options={"headers": names}).ask("the task").found

    both = found(x_session_id="s", x_scenario_id="c")
    assert (both.session_id, both.session_by, both.scenario, both.scenario_by) == (
        "s",
        TaggedBy.HEADER,
        "c",
        TaggedBy.HEADER,
    )
    session = found(x_session_id="s")
    assert (session.session_id, session.session_by, session.scenario_by) == ("s", TaggedBy.HEADER, TaggedBy.INFERRED)
    scenario = found(x_scenario_id="c")
    assert (scenario.session_by, scenario.scenario, scenario.scenario_by) == (
        TaggedBy.INFERRED,
        "c",
        TaggedBy.HEADER,
    )
    neither = found()
    assert neither.scenario == session.scenario
    assert all(one.turn is None for one in (both, session))


def test_a_call_without_conversation_is_a_session_of_its_own(proxy: Proxy) -> None:
    from proxy.tags import read_tags
    from storage.types import DEFAULT_OWNER

    one, two = (proxy.inference.find(DEFAULT_OWNER, {"client": None}, None, read_tags([]), None) for _ in range(2))
    assert one.session_id != two.session_id
    assert (one.session_by, one.scenario, one.turn) == (TaggedBy.NONE, None, None)


def test_memory_is_bounded(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.inference._NAMES", 100)
    for n in range(300):
        agent = ChatAgent(proxy, f"a{n}")
        agent.hear_call(agent.ask(f"task {n}"), "search", f"call_{n}")
    assert len(proxy.inference._answers) <= 100
    assert len(proxy.inference._sessions) <= 50
    loyal = ChatAgent(proxy, "loyal")
    made = [loyal.ask("a long task")]
    for turn in range(40):
        loyal.hear_call(made[-1], "search", f"loyal_{turn}")
        made.append(loyal.call())
    assert len(set(ids(*made))) == 1
    assert sum(len(session.answers) for session in proxy.inference._sessions.values()) <= 66


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),  # who moves
        st.sampled_from(["say", "say", "tool", "fail", "again", "new"]),
        st.integers(0, 1),  # which of two texts, so that histories often are the same
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(steps=_STEPS, port=st.booleans())
def test_two_agents_are_never_mixed(steps: list[tuple[int, str, int]], port: bool) -> None:
    """Whatever agents do at once, a session holds the calls of one, or is ambiguous."""
    proxy = Proxy()
    numbers = iter(range(10_000))
    agents = [ChatAgent(proxy, f"{next(numbers)}") for _ in range(4)]
    under_way: dict[int, Call] = {}
    for who, what, text in steps:
        agent = agents[who]
        if who not in under_way:
            agent.options = {"port": 1 if port else who}
            if what == "new":
                agent = agents[who] = ChatAgent(proxy, f"{next(numbers)}", options=agent.options)
            if agent.messages[-1]["role"] != "tool":
                agent.messages.append({"role": "user", "content": f"go {text}"})
            under_way[who] = agent.call()
            continue
        made = under_way.pop(who)
        if what == "fail":
            made.fail()
            under_way[who] = agent.call()
        elif what == "tool":
            agent.hear_call(made, "search", f"call_{text}")
        else:
            agent.hear(made, f"answer {text}")
    proxy.assert_never_mixed()
