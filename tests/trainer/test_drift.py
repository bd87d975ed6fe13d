"""Prompts that say an answer otherwise than it was sampled: found, counted, told apart, shown."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from storage import drifts
from storage.calls import of_session
from storage.drifts import Drift, Kind
from storage.retention import delete_part
from storage.states import CallOutcome
from storage.types import Call
from tests.storage.recorded import call_start, capture
from tests.trainer.loopback import FakeModels
from tests.trainer.made import call, choice
from tests.trainer.workshop import Workshop
from trainer import weights
from trainer.drift import described, divergences
from trainer.errors import NoWeights
from trainer.sieve import Sieve


class Letters:
    """A token for each character, and one for the two letters `ab`."""

    AB = 1

    def decode(self, ids: list[int]) -> str:
        return "".join("ab" if token == self.AB else chr(token) for token in ids)


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def two(prompt: str, answer: str, following: str | list[int], **changes: Any) -> list[Call]:
    """A call, and one that goes on from its answer by its messages."""
    after = ids(following) if isinstance(following, str) else following
    later = call(2, after, choice(ids("x")), **{"parent": 1, "continues": 0} | changes)
    return [call(1, ids(prompt), choice(ids(answer))), later]


KINDS: list[tuple[str, str, str | list[int], Kind]] = [
    ("U:q\nA:", "yes \n|", "U:q\nA:yes|\nU:r\nA:", Kind.BOUNDARY),
    ("U:q\nA:", "ab|", [*ids("U:q\nA:"), Letters.AB, *ids("|\nU:r\nA:")], Kind.BOUNDARY),
    ("U:q\nA:", "<think>hm</think>yes|", "U:q\nA:yes|\nU:r\nA:", Kind.REASONING),
    ("U:q\nA:<think>", "hm</think>yes|", "U:q\nA:yes|\nU:r\nA:", Kind.REASONING),
    (
        "U:q\nA:",
        '<tool_call>{"name": "f", "arguments": {"a":1}}</tool_call>|',
        'U:q\nA:<tool_call>{"name": "f", "arguments": {"a": 2}}</tool_call>|\n',
        Kind.TOOL_CALL,
    ),
    ("U:q\nA:", "[TOOL_CALLS]f|", "U:q\nA:call f|", Kind.TOOL_CALL),
    ("U:q\nA:", "yes|", "U:q\nA:no|\nU:r\nA:", Kind.REWRITTEN),
    ("U:long story\nA:", "yes|", "U:summary\nA:yes|", Kind.REWRITTEN),
    ("U:q\nA:", "yes|", "U:q\nA:", Kind.REWRITTEN),
]


@pytest.mark.parametrize(("prompt", "answer", "following", "kind"), KINDS)
def test_a_drift_is_told_by_its_text(prompt: str, answer: str, following: str | list[int], kind: Kind) -> None:
    found = described(two(prompt, answer, following), Letters)
    assert (found.continued, found.drifted, found.call, found.kind) == (1, 1, "call 2", kind)


def test_the_text_around_the_first_difference_is_shown() -> None:
    begin = "0123456789" * 5
    found = described(two(begin, "yes!" + begin, begin + "no.." + begin), Letters)
    assert (found.sampled, found.prompted) == (begin[-24:] + "yes!" + begin[:20], begin[-24:] + "no.." + begin[:20])


NO_DRIFT: list[list[Call]] = [
    two("q", "yes", "qyes, r"),
    two("q", "yes", "qno", continues=None),
    two("q", "yes", "qno", parent=None),
    two("q", "yes", "qno", parent=7),
    two("q", "yes", "qno", outcome=CallOutcome.SUPERSEDED),
    two("q", "yes", ""),
    two("q", "", "qno"),
    two("", "yes", "no"),
    [],
]


@pytest.mark.parametrize("calls", NO_DRIFT)
def test_what_goes_on_in_its_tokens_or_goes_on_from_nothing_is_no_drift(calls: list[Call]) -> None:
    assert divergences(calls)[1] == []
    assert described(calls, lambda: NoWeights("none")).drifted == 0


def test_each_drift_counts_and_the_first_in_time_is_shown() -> None:
    calls = [
        call(1, [1], choice([2])),
        call(2, [1, 9, 4], choice([5]), parent=1, continues=0),
        call(3, [1, 9, 4, 5, 6], choice([7]), parent=2, continues=0),
        call(4, [8], choice([7]), parent=3, continues=0),
    ]
    expected = Drift(3, 2, calls[1].id, problem="no tokenizer")
    assert described(calls, lambda: NoWeights("no tokenizer")) == expected
    assert described(calls[::-1], lambda: NoWeights("no tokenizer")) == expected


def test_a_choice_beside_the_first_is_gone_on_from() -> None:
    first = call(1, [1], choice([2]), choice([3], index=1))
    assert divergences([first, call(2, [1, 3, 4], choice([5]), parent=1, continues=1)]) == (1, [])
    assert divergences([first, call(2, [1, 2, 4], choice([5]), parent=1, continues=1)])[1][0].at == 1


def test_tokens_are_compared_as_they_are_kept() -> None:
    (one,) = divergences([call(1, [1, 2], choice([3])), call(2, [1, 2, 4], choice([5]), parent=1, continues=0)])[1]
    assert (one.at, one.answer, one.before.tolist(), one.prompt.tolist()) == (2, 2, [1, 2, 3], [1, 2, 4])
    assert isinstance(one.call.prompt_ids, array)


def a_tokenizer(folder: Path) -> str:
    """A model's folder with a tokenizer that reads 1 to 9 as the letters a to i."""
    words = {"?": 0} | {letter: number for number, letter in enumerate("abcdefghi", 1)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.decoder = decoders.Fuse()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 10}')
    return str(folder)


def drifted(workshop: Workshop, name: str, turns: int = 3) -> None:
    """A session whose every prompt says the answer before it otherwise."""
    messages = [{"role": "user", "content": "one"}]
    for turn in range(turns):
        prompt = [1, 2, *([4, 5] * turn)]
        workshop.turn(call_start(name), messages, f"answer {turn}", capture(prompt, [3]))
        messages += [{"role": "assistant", "content": f"answer {turn}"}, {"role": "user", "content": "more"}]
    workshop.close(name)
    workshop.take_in()


def test_the_trainer_records_it_when_it_first_looks(workshop: Workshop, models: FakeModels, tmp_path: Path) -> None:
    models.document["data"][1]["root"] = a_tokenizer(tmp_path / "model")
    drifted(workshop, "s")
    session = workshop.session("s")
    assert drifts.row(workshop.db, session.key) is None
    Sieve(workshop.db, workshop.settings()).candidate(session)
    found = drifts.row(workshop.db, session.key)
    assert found is not None
    assert (found["continued"], found["drifted"], found["kind"]) == (2, 2, "history rewritten")
    assert (found["sampled"], found["prompted"], found["problem"]) == ("abc", "abde", None)
    Sieve(workshop.db, workshop.settings()).candidate(session)
    assert drifts.row(workshop.db, session.key) == found, "a trainer that starts again looks again"


def test_without_a_tokenizer_it_is_counted_and_says_so(workshop: Workshop) -> None:
    drifted(workshop, "s")
    session = workshop.session("s")
    assert Sieve(workshop.db, workshop.settings()).candidate(session) is not None
    found = drifts.row(workshop.db, session.key)
    assert found is not None
    assert (found["drifted"], found["kind"], found["sampled"]) == (2, None, None)
    assert found["problem"].startswith("the tokenizer of /models/small cannot be read: ")


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_tokenizer_is_told(tmp_path: Path, file: str, text: str) -> None:
    folder = Path(a_tokenizer(tmp_path / "model"))
    (folder / file).write_text(text)
    with pytest.raises(NoWeights, match=r"the tokenizer of .* cannot be read"):
        weights.tokenizer(str(folder))


def test_an_answer_that_the_client_restates_is_a_drift(workshop: Workshop) -> None:
    user = {"role": "user", "content": "one"}
    more = {"role": "user", "content": "more"}
    workshop.turn(call_start("s"), [user], "the answer", capture([1, 2], [3]))
    for following in ([{"role": "assistant", "content": "in short"}, more], [more]):
        workshop.turn(call_start("s"), [user, *following], "x", capture([1, 2, 4, 5], [6]))
    workshop.take_in()
    recorded = of_session(workshop.db, workshop.session("s").key)
    assert [call.restates for call in recorded] == [False, True, False]
    continued, found = divergences(recorded)
    assert (continued, [one.call.seq for one in found]) == (1, [recorded[1].seq])


def test_a_scenario_that_falls_apart_is_found(workshop: Workshop) -> None:
    for number in range(4):
        assert drifts.fallen_apart(workshop.db) == []
        for name, drift in ((f"apart {number}", Drift(2, 2, kind=Kind.REASONING)), (f"single {number}", Drift(1, 1))):
            drifts.keep(workshop.db, workshop.closed(name).key, drift)
    (found,) = drifts.fallen_apart(workshop.db)
    assert (found.scenario, found.sessions, found.apart, found.kind) == ("task", 4, 4, "reasoning stripped")
    for number in range(2):
        drifts.keep(workshop.db, workshop.session(f"apart {number}").key, Drift(2, 1, kind=Kind.REASONING))
    assert drifts.fallen_apart(workshop.db) == [], "half of them is not most"


def test_what_is_kept_goes_with_its_session(workshop: Workshop) -> None:
    key = workshop.closed("s").key
    drifts.keep(workshop.db, key, Drift(2, 2))
    with workshop.db.transaction():
        delete_part(workshop.db, key, 100)
    assert workshop.db.number("SELECT count(*) FROM drifts") == 0
