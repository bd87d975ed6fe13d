"""RULER: which of the judge's answers count, and what is done about the others."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.trainer.fake_judge import Answer, FakeJudge, says, scores, served
from trainer.errors import JudgeRefused, JudgeTooLong
from trainer.judge import Judge
from trainer.question import Attempt, Terms
from trainer.ruler import Score, read_answer, score

SYSTEM = {"role": "system", "content": "Find the door."}
USER = {"role": "user", "content": "go"}
IDS = ["t1", "t2"]
TOOL = {"type": "function", "function": {"name": "look"}}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def attempt(*texts: str, tools: tuple[Any, ...] = ()) -> Attempt:
    return Attempt((SYSTEM, USER, *map(said, texts)), tools)


def test_an_answer_in_any_order_is_read_by_its_ids() -> None:
    found = read_answer(scores(0.25, 1, 0, ids="t3 t1 t2"), ["t1", "t2", "t3"])
    assert [entry.value for entry in found] == [1.0, 0.0, 0.25]
    assert found[0] == Score(1.0, "because of 1")


@pytest.mark.parametrize(
    "around", ["{}", "Here you are:\n```json\n{}\n```\nAll the best!", "\n {} ", "<think>hm</think>{}"]
)
def test_prose_around_the_answer_is_no_fault(around: str) -> None:
    assert [s.value for s in read_answer(around.replace("{}", scores(0, 1)), IDS)] == [0.0, 1.0]


_UNUSABLE = {
    "too high": (scores(0.5, 1.01), "scores.1.score: Input should be less than or equal to 1"),
    "far too high": (scores(0.5, 7), "less than or equal to 1"),
    "negative": (scores(-0.1, 0.5), "scores.0.score: Input should be greater than or equal to 0"),
    "NaN": (scores(0.5, 0.5).replace("0.5}]", "NaN}]"), "finite number"),
    "infinite": (scores(0.5, 0.5).replace("0.5}]", "Infinity}]"), "scores.1.score"),
    "no number": (scores(0.5, 0.5).replace("0.5}]", '"good"}]'), "scores.1.score"),
    "one is missing": (scores(0.5), "it scores t1; it must score t1, t2, each once"),
    "one is repeated": (scores(0.5, 0.6, ids="t1 t1"), "it scores t1, t1; it must score t1, t2"),
    "one too many": (scores(0.5, 0.6, 0.7), "it scores t1, t2, t3; it must score t1, t2"),
    "one is unknown": (scores(0.5, 0.6, ids="t1 t9"), "it scores t1, t9"),
    "ids from 0": (scores(0.5, 0.6, ids="t0 t1"), "it scores t0, t1"),
    "nobody": ('{"scores": []}', "it scores nothing"),
    "another field": (scores(0.5, 0.6, bonus=1), "scores.0.bonus: Extra inputs are not permitted"),
    "no explanation": ('{"scores": [{"trajectory_id": "t1", "score": 1}]}', "scores.0.explanation: Field required"),
    "an empty explanation": (scores(0.5, 0.5, explanation=" "), "scores.0.explanation: String should have at least 1"),
    "another document": ('{"winner": "t1"}', "scores: Field required"),
    "a list": ("[0.5, 0.6]", "there is no JSON in it"),
    "prose": ("I would rather not compare them.", "there is no JSON in it: 'I would rather not"),
    "torn": (scores(0.5, 0.6)[:-2], "Invalid JSON"),
    "upside down": ("} {", "there is no JSON in it"),
    "empty": ("", "it is empty"),
}


@pytest.mark.parametrize(("content", "fault"), _UNUSABLE.values(), ids=_UNUSABLE.keys())
def test_an_answer_that_cannot_be_used(content: str, fault: str) -> None:
    with pytest.raises(JudgeRefused) as refused:
        read_answer(content, IDS)
    assert fault in str(refused.value)


@pytest.fixture(scope="module")
def served_judge() -> Iterator[FakeJudge]:
    with served(FakeJudge()) as judge:
        yield judge


@pytest.fixture
def fake(served_judge: FakeJudge) -> FakeJudge:
    served_judge.requests.clear()
    return served_judge


def ask(fake: FakeJudge, attempts: list[Attempt], *answers: Answer) -> list[float]:
    fake.answers = list(answers)
    judge = Judge(fake.url, "judge-1", None)
    try:
        return [one.value for one in score(judge, attempts, Terms(), 5).scores]
    finally:
        judge.close()


def test_scores_stand_in_the_order_of_the_attempts(fake: FakeJudge) -> None:
    attempts = [attempt("a"), attempt("b"), attempt("c")]
    assert ask(fake, attempts, says(scores(0.9, 0.1, 0.5, ids="t2 t3 t1"))) == [0.5, 0.9, 0.1]
    schema = fake.requests[0]["response_format"]["json_schema"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["scores"]


def test_equal_attempts_are_judged_once_and_scored_alike(fake: FakeJudge) -> None:
    attempts = [attempt("a"), attempt("b"), attempt("a"), attempt("c"), attempt("b")]
    assert ask(fake, attempts, says(scores(0.1, 0.2, 0.3))) == [0.1, 0.2, 0.1, 0.3, 0.2]
    shown = [t["messages"][0]["content"] for t in fake.document()["trajectories"]]
    assert sorted(shown) == ["a", "b", "c"]


def test_a_fault_is_named_and_asked_for_once_more(fake: FakeJudge) -> None:
    fake.answers = [says(scores(0.5, 7), tokens=30), says(scores(0.5, 0.7), tokens=12)]
    judge = Judge(fake.url, "judge-1", None)
    found = score(judge, [attempt("a"), attempt("b")], Terms(), 5)
    judge.close()
    assert ([one.value for one in found.scores], judge.tokens) == ([0.5, 0.7], 42)
    first, second = fake.requests
    assert second["messages"][:2] == first["messages"]
    answer, again = second["messages"][2:]
    assert answer["role"] == "assistant"
    assert [one["score"] for one in json.loads(answer["content"])["scores"]] == [0.5, 7]
    assert again["role"] == "user"
    assert "scores.1.score: Input should be less than or equal to 1" in again["content"]


def test_silence_is_asked_once_more_too(fake: FakeJudge) -> None:
    assert ask(fake, [attempt("a"), attempt("b")], says(None), says(scores(0, 1))) == [0.0, 1.0]
    assert [message["role"] for message in fake.requests[1]["messages"]] == ["system", "user", "user"]


@pytest.mark.parametrize("bad", ["", "No.", scores(0.5)], ids=["silence", "refusal", "one is missing"])
def test_a_second_fault_ends_the_group(fake: FakeJudge, bad: str) -> None:
    with pytest.raises(JudgeRefused):
        ask(fake, [attempt("a"), attempt("b")], says(bad))
    assert len(fake.requests) == 2


def test_a_group_that_the_judge_cannot_take_is_asked_once(fake: FakeJudge) -> None:
    with pytest.raises(JudgeRefused, match="400"):
        ask(fake, [attempt("a"), attempt("b")], (400, "context too long"))
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        (400, "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens"),
        (400, '{"error": {"code": "context_length_exceeded"}}'),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed"),
        (413, "no"),
    ],
)
def test_a_group_that_is_too_long_for_the_judge_is_cut_further(fake: FakeJudge, refusal: Answer) -> None:
    fake.answers = [refusal, refusal, says(scores(0, 1))]
    judge = Judge(fake.url, "judge-1", None)
    found = score(judge, [attempt("a" * 9000), attempt("b " * 9000)], Terms(), 5)
    judge.close()
    assert [one.value for one in found.scores] == [0.0, 1.0]
    lengths = [len(request["messages"][1]["content"]) for request in fake.requests]
    assert lengths == sorted(lengths, reverse=True)
    assert found.cut is not None
    assert found.cut.texts == 1


def test_a_group_that_stays_too_long_is_refused(fake: FakeJudge) -> None:
    with pytest.raises(JudgeTooLong, match="context of 12"):
        ask(fake, [attempt("a" * 9000), attempt("b")], (400, "this has a context of 12"))
    assert len(fake.requests) == 3


def test_an_answer_with_half_a_surrogate_pair_can_be_sent_back(fake: FakeJudge) -> None:
    odd = (200, r'{"choices": [{"message": {"content": "\ud800"}}]}')
    assert ask(fake, [attempt("a"), attempt("b")], odd, says(scores(0, 1))) == [0.0, 1.0]
    assert fake.requests[1]["messages"][2]["content"] == "?"
