"""What is kept of a call: exact bytes and ids at the cost of what is new, and a transcript as the agent saw it."""

import array
import json
from typing import Any

import pytest

from storage import call_writer, calls, retention
from storage.calls import Message, Reading
from storage.errors import NotFound
from storage.states import CallOutcome
from storage.types import CallId, CallStart
from tests.storage.recorded import Recorded, call_start, capture

TOOLS = [{"type": "function", "function": {"name": "look"}}]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def seqs(recorded: Recorded) -> list[int]:
    return [row["seq"] for row in recorded.db.all("SELECT seq FROM calls ORDER BY seq")]


def parents(recorded: Recorded) -> list[int | None]:
    """For each call the position of its parent among the calls."""
    rows = recorded.db.all("SELECT seq, parent FROM calls ORDER BY seq")
    places = {row["seq"]: place for place, row in enumerate(rows)}
    return [places[row["parent"]] if row["parent"] else None for row in rows]


def conversation(turns: int, new: int = 2000) -> list[list[Message]]:
    """The message lists of a chat in which every turn adds ``new`` characters (half of them the answer's)."""
    messages: list[Message] = [{"role": "system", "content": "You are an agent."}]
    lists = []
    for turn in range(turns):
        messages.append(user(f"{turn} ".ljust(new // 2, "q")))
        lists.append(list(messages))
        messages.append(assistant(f"{turn} ".ljust(new // 2, "a")))
    return lists


def play(recorded: Recorded, lists: list[list[Message]], again: int = 10**9) -> list[tuple[bytes, list[int]]]:
    """The requests and prompt ids that were recorded, one call for each list; a restart after each ``again`` calls."""
    sent, ids = [], [9]
    for number, messages in enumerate(lists):
        ids = [*ids, *range(number * 300, number * 300 + 300)]
        start = call_start("s")
        answer = f"{number} ".ljust(1000, "a")
        recorded.turn(start, messages, answer, capture(ids, [7, 8]))
        sent.append((json.dumps({"messages": messages, "tools": []}).encode(), ids))
        if number % again == again - 1:
            recorded.take_in()
            recorded.restart()
    recorded.take_in()
    return sent


@pytest.mark.parametrize("again", [10**9, 7, 1], ids=["one process", "seven calls a process", "one call a process"])
def test_fifty_turns_decode_exactly_at_twice_their_content(recorded: Recorded, again: int) -> None:
    sent = play(recorded, conversation(50), again)
    assert parents(recorded) == [None, *range(49)]
    numbers = seqs(recorded)
    for seq, (request, ids) in zip(numbers, sent, strict=True):
        assert calls.body(recorded.db, seq) == request
        assert list(array.array("i", calls.body(recorded.db, seq, "prompt_ids"))) == ids
    session = recorded.session("s")
    assert [list(call.prompt_ids) for call in calls.of_session(recorded.db, session.key)] == [ids for _, ids in sent]
    unique = len(sent[-1][0]) + 4 * len(sent[-1][1])
    kept = recorded.db.number("SELECT sum(length(request) + length(prompt_ids)) FROM calls")
    assert kept <= 2.1 * unique
    shown = recorded.db.number("SELECT sum(length(input)) FROM calls")
    assert shown <= 1.1 * len(sent[-1][0])


def test_the_path_of_an_answer_is_all_that_the_model_saw_and_said(recorded: Recorded) -> None:
    """Also where the prompt is a difference to an earlier call; gone with its session, older ones first to last."""
    sent = play(recorded, conversation(5))
    names = [CallId(row["id"]) for row in recorded.db.all("SELECT id FROM calls ORDER BY seq")]
    for name, (_, ids) in zip(names, sent, strict=True):
        assert list(calls.path(recorded.db, name, 0) or ()) == [*ids, 7, 8]
    assert calls.path(recorded.db, names[0], 1) is None
    with recorded.db.transaction():
        retention.delete_part(recorded.db, recorded.session("s").key, 10)
    assert [calls.path(recorded.db, name, 0) for name in names] == [None] * 5


def test_many_turns_cost_no_more_for_each(recorded: Recorded) -> None:
    sent = play(recorded, conversation(150, new=200))
    kept = recorded.db.number("SELECT sum(length(request) + length(prompt_ids)) FROM calls")
    assert kept <= 3 * (len(sent[-1][0]) + 4 * len(sent[-1][1]))
    for place in (0, 16, 17, 100, 149):
        assert calls.body(recorded.db, seqs(recorded)[place]) == sent[place][0]


def test_a_call_continues_the_longest_conversation_that_it_begins_with(recorded: Recorded) -> None:
    first, second, third = user("one"), user("two"), user("three")
    recorded.turn(call_start("s"), [first], "a")
    recorded.turn(call_start("s"), [first, assistant("a"), second], "b")
    recorded.turn(call_start("s"), [first, assistant("a"), third], "c")  # a branch: continues the first
    recorded.turn(call_start("s"), [user("a sub-agent's own")], "d")
    recorded.turn(call_start("s"), [first, assistant("a"), second, assistant("b"), third], "e")
    recorded.turn(call_start("s"), [first], "f")  # the same request again: the newest of equals
    recorded.turn(call_start("s"), [first, assistant("f"), second], "g")
    recorded.take_in()
    assert parents(recorded) == [None, 0, 0, None, 1, 0, 5]


def test_calls_of_other_sessions_are_no_parents(recorded: Recorded) -> None:
    recorded.turn(call_start("one"), [user("hello")], "a")
    recorded.turn(call_start("two"), [user("hello"), assistant("a"), user("more")], "b")
    recorded.take_in()
    assert parents(recorded) == [None, None]


@pytest.mark.parametrize("restart", [False, True])
def test_the_transcript_is_what_the_agent_saw(recorded: Recorded, restart: bool) -> None:
    asked: list[Message] = [{"role": "system", "content": "Find the door."}, user("go")]
    wants: Message = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}],
    }
    found: Message = {"role": "tool", "tool_call_id": "c1", "content": "a door"}
    first, second = call_start("s"), call_start("s")
    recorded.begin(first, asked, TOOLS)
    recorded.piece(first, json.dumps([wants, assistant("a second choice")]).encode())
    recorded.finish(first)
    recorded.take_in()
    if restart:
        recorded.restart()
    recorded.begin(second, [*asked, wants, found], TOOLS)
    recorded.piece(second, json.dumps([assistant("I see a door.")]).encode())
    recorded.finish(second)
    recorded.take_in()
    one, two = seqs(recorded)
    assert calls.transcript(recorded.db, one) == ([*asked, wants], TOOLS)
    assert calls.transcript(recorded.db, two) == ([*asked, wants, found, assistant("I see a door.")], TOOLS)
    assert recorded.db.number("SELECT count(*) FROM calls WHERE tools IS NOT NULL") == 1


def test_tools_that_are_no_longer_offered_are_not_shown(recorded: Recorded) -> None:
    first, second, third = call_start("s"), call_start("s"), call_start("s")
    for start, messages, tools in (
        (first, [user("a")], TOOLS),
        (second, [user("a"), assistant("b"), user("c")], []),
        (third, [user("a"), assistant("b"), user("c"), assistant("d"), user("e")], TOOLS),
    ):
        recorded.begin(start, messages, tools)
        recorded.piece(start, b"[]")
        recorded.finish(start)
    recorded.take_in()
    assert [calls.transcript(recorded.db, seq)[1] for seq in seqs(recorded)] == [TOOLS, [], TOOLS]


def _deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


_ODD: dict[str, tuple[Any, Any]] = {
    "half a surrogate pair": ("a\ud800b", "a?b"),
    "half a pair as a name": ({"\udc00": 1}, {"?": 1}),
    "NUL": ("a\x00b", "a\x00b"),
    "an integer beyond 64 bits": (2**70, str(2**70)),
    "the largest integer": (2**64 - 1, 2**64 - 1),
    "the smallest integer": (-(2**63), -(2**63)),
    "one below it": (-(2**63) - 1, str(-(2**63) - 1)),
    "NaN": (float("nan"), None),
    "Infinity": (float("-inf"), None),
    "nothing": (None, None),
}


@pytest.mark.parametrize(("value", "shown"), _ODD.values(), ids=_ODD.keys())
@pytest.mark.parametrize("restart", [False, True])
def test_odd_json_is_kept_exactly_and_shown_without_a_crash(
    recorded: Recorded, value: Any, shown: Any, restart: bool
) -> None:
    odd: Message = {"role": "user", "content": value, "big": 2**63}
    sent = json.dumps({"messages": [odd], "tools": []}).encode()
    recorded.turn(call_start("s"), [odd], "a")
    recorded.take_in()
    if restart:
        recorded.restart()
    recorded.turn(call_start("s"), [odd, assistant("a"), odd], "b")
    recorded.take_in()
    assert recorded.ingestion.refused == 0
    one, two = seqs(recorded)
    assert calls.body(recorded.db, one) == sent
    assert parents(recorded) == [None, 0]
    assert calls.transcript(recorded.db, two)[0][0]["content"] == shown
    assert len(calls.transcript(recorded.db, two)[0]) == 4


@pytest.mark.parametrize("levels", [100, 199, 245, 260, 900])
def test_deep_nesting_is_kept_exactly_and_shown_to_a_depth(recorded: Recorded, levels: int) -> None:
    odd: Message = {"role": "user", "content": _deep(levels)}
    recorded.turn(call_start("s"), [odd], "a")
    recorded.turn(call_start("s"), [odd, assistant("a"), user("b")], "b")
    recorded.take_in()
    assert recorded.ingestion.refused == 0
    one, _ = seqs(recorded)
    assert json.loads(calls.body(recorded.db, one))["messages"] == [odd]
    assert parents(recorded) == [None, 0]
    (shown, answer), _tools = calls.transcript(recorded.db, one)
    assert answer == assistant("a")
    text = json.dumps(shown)
    assert ("bottom" in text) == (levels < 250)
    assert ("nested too deeply" in text) == (levels >= 250)


def test_several_prompts_and_lengths_that_differ_are_not_trainable(recorded: Recorded) -> None:
    payload = json.loads(capture([1], [2]))
    several = payload | {"prompts": [[1], [2]]}
    differ = payload | {"choices": [{"index": 0, "ids": [2, 3], "logprobs": [-1.0], "finish": "stop"}]}
    said = payload | {"reason": "beam search", "prompts": [], "choices": []}
    for odd in (several, differ, said):
        recorded.turn(call_start("s"), [user("a")], "b", json.dumps(odd).encode())
    recorded.turn(call_start("s"), [user("a")], "b", capture([1], [2], finish="abort"))
    recorded.turn(call_start("s"), [user("a")], "b", capture([1], [2], finish=None))
    recorded.take_in()
    found = calls.of_session(recorded.db, recorded.session("s").key)
    assert [call.not_trainable for call in found] == [
        "2 prompts in one call",
        "the numbers of sampled tokens and of logprobs differ",
        "beam search",
        "an answer was cut off before its end",
        "an answer was cut off before its end",
    ]


@pytest.mark.parametrize("outcome", [o for o in CallOutcome if o is not CallOutcome.COMPLETE])
def test_what_did_not_end_well_is_not_trainable(recorded: Recorded, outcome: CallOutcome) -> None:
    start = call_start("s")
    recorded.begin(start, [user("a")])
    recorded.captured(start, capture([1], [2]))
    recorded.finish(start, outcome)
    recorded.take_in()
    (call,) = calls.of_session(recorded.db, recorded.session("s").key)
    assert (call.outcome, call.not_trainable) == (outcome, f"the call ended as {outcome}")


def test_without_a_capture_there_are_no_tokens(recorded: Recorded) -> None:
    start = call_start("s")
    recorded.begin(start, [user("a")])
    recorded.finish(start)
    recorded.take_in()
    (call,) = calls.of_session(recorded.db, recorded.session("s").key)
    assert (list(call.prompt_ids), call.choices, call.sampling) == ([], (), {})
    assert call.not_trainable == "no tokens were captured"


def test_what_is_not_there_is_said(recorded: Recorded) -> None:
    for ask in (calls.body, calls.transcript):
        with pytest.raises(NotFound, match="no call number 99"):
            ask(recorded.db, 99)


def test_only_so_much_is_remembered(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that were forgotten to save memory are read again from the database, and nothing changes."""
    monkeypatch.setattr(call_writer, "_REMEMBERED_BYTES", 20_000)
    lists = conversation(6)
    for messages in lists:
        for name in ("one", "two", "three"):
            recorded.turn(call_start(name), messages, str(len(messages)))
    recorded.take_in()
    writer = recorded.ingestion._calls
    assert len(writer._sessions) == 1
    assert writer._remembered == sum(call.size for call in next(iter(writer._sessions.values())))
    assert parents(recorded) == [None] * 3 + list(range(15))


def test_one_huge_session_is_remembered_in_part(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_writer, "_REMEMBERED_BYTES", 30_000)
    sent = play(recorded, conversation(20))
    assert parents(recorded) == [None, *range(19)]
    writer = recorded.ingestion._calls
    assert writer._remembered == sum(call.size for call in writer._sessions[recorded.session("s").key])
    assert writer._remembered <= max(30_000, len(sent[-1][0]) + 4 * len(sent[-1][1]) + 2000)  # and its answer
    # What continues a call that is no longer remembered stands on its own.
    recorded.turn(call_start("s"), conversation(2)[1], "a branch")
    recorded.take_in()
    last = seqs(recorded)[-1]
    assert parents(recorded)[-1] is None
    assert calls.transcript(recorded.db, last)[0] == [*conversation(2)[1], assistant("a branch")]


def test_a_reading_without_messages_stands_alone(recorded: Recorded) -> None:
    def nothing(_: CallStart, __: bytes, ___: bytes) -> Reading:
        return Reading((), ())

    recorded.ingestion._calls = call_writer.CallWriter(recorded.ingestion._db, nothing)
    recorded.turn(call_start("s"), [user("a")], "b")
    recorded.turn(call_start("s"), [user("a")], "b")
    recorded.take_in()
    assert parents(recorded) == [None, None]
    assert calls.transcript(recorded.db, seqs(recorded)[0]) == ([], [])


@pytest.mark.parametrize(("said", "kept"), [(7, 7), (None, 0)])
def test_the_clients_own_limit_is_kept(recorded: Recorded, said: int | None, kept: int) -> None:
    def limited(_: CallStart, __: bytes, ___: bytes) -> Reading:
        return Reading((), (), token_limit=said)

    recorded.ingestion._calls = call_writer.CallWriter(recorded.ingestion._db, limited)
    recorded.turn(call_start("s"), [user("a")], "b")
    recorded.take_in()
    (call,) = calls.of_session(recorded.db, recorded.session("s").key)
    assert call.token_limit == kept


def test_a_number_reads_the_same_beside_an_odd_neighbour(recorded: Recorded) -> None:
    """After a restart the parent is found by what was shown of it."""
    large, odd = {"role": "user", "content": "a", "seed": 2**63 + 1}, user("\ud800")
    recorded.turn(call_start("s"), [large, odd], "b")
    recorded.take_in()
    recorded.restart()
    recorded.turn(call_start("s"), [large, odd, assistant("b"), user("c")], "d")
    recorded.take_in()
    assert parents(recorded) == [None, 0]


def test_an_answer_that_the_next_call_repeats_is_kept_once(recorded: Recorded) -> None:
    recorded.turn(call_start("s"), [user("a")], "b")
    recorded.turn(call_start("s"), [user("a"), assistant("b"), user("c")], "d")
    changed = {"role": "assistant", "content": "b", "name": "not as it was given"}
    recorded.turn(call_start("s"), [user("a"), changed, user("c")], "e")
    recorded.take_in()
    assert [row["input"] for row in calls.rows(recorded.db, recorded.session("s").key)] == [
        [user("a")],
        [user("c")],
        [changed, user("c")],
    ]
    assert calls.transcript(recorded.db, seqs(recorded)[2])[0] == [user("a"), changed, user("c"), assistant("e")]


def test_of_two_equal_calls_the_one_whose_answer_is_repeated_is_continued(recorded: Recorded) -> None:
    recorded.turn(call_start("s"), [user("a")], "b")
    recorded.turn(call_start("s"), [user("a")], "another")
    recorded.turn(call_start("s"), [user("a"), assistant("b"), user("c")], "d")
    recorded.take_in()
    assert parents(recorded) == [None, 0, 0]
