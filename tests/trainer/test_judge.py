"""The judge's client against a real HTTP server: what lets a group wait, and what ends it."""

import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.trainer.fake_judge import Answer, FakeJudge, says, served
from trainer import judge as judges
from trainer.errors import JudgeRefused, JudgeSilent, JudgeUnreachable
from trainer.judge import Judge, Reply

SCHEMA = {"type": "object"}
ASK = [{"role": "user", "content": "compare"}]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeJudge]:
    judge = FakeJudge()
    with served(judge):
        yield judge


def ask(fake: FakeJudge, answer: Answer, key: str | None = None) -> Reply:
    fake.answers = [answer]
    judge = Judge(fake.url, "judge-1", key)
    try:
        return judge.ask(ASK, SCHEMA)
    finally:
        judge.close()


def test_the_request_and_its_answer(fake: FakeJudge) -> None:
    reply = ask(fake, says(' {"scores": []} ', tokens=321), key="secret")
    assert reply == Reply('{"scores": []}', 321)
    request = fake.requests[-1]
    assert request == {
        "path": "/v1/chat/completions",
        "model": "judge-1",
        "messages": ASK,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "scores", "strict": True, "schema": SCHEMA},
        },
    }
    assert fake.headers[-1]["authorization"] == "Bearer secret"


def test_without_a_key_none_is_sent(fake: FakeJudge) -> None:
    ask(fake, says("x"))
    assert "authorization" not in fake.headers[-1]


@pytest.mark.parametrize("usage", [None, {}, {"total_tokens": None}])
def test_a_judge_that_counts_no_tokens(fake: FakeJudge, usage: object) -> None:
    reply = ask(fake, (200, {"choices": [{"message": {"content": "x"}}], "usage": usage}))
    assert reply.tokens == 2, "compare, x: they are counted here"


@pytest.mark.parametrize("status", [301, 307, 401, 402, 403, 404, 405, 409])
def test_what_needs_a_person_lets_all_groups_wait(fake: FakeJudge, status: int) -> None:
    with pytest.raises(JudgeUnreachable, match=f"answered with {status}: no, sorry; groups wait; check SLIPSTREAM"):
        ask(fake, (status, "no, sorry"))


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_a_judge_that_repeats_our_key_does_not_make_it_readable(fake: FakeJudge, status: int) -> None:
    with pytest.raises((JudgeUnreachable, JudgeRefused, JudgeSilent)) as told:
        ask(fake, (status, "wrong: Bearer sk-of-the-judge"), key="sk-of-the-judge")
    assert "wrong: Bearer ***" in str(told.value)
    assert "sk-of" not in str(told.value)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_what_passes_lets_the_group_wait(fake: FakeJudge, status: int) -> None:
    with pytest.raises(JudgeSilent, match=f"answered with {status}: no, sorry"):
        ask(fake, (status, "no, sorry"))


def test_a_judge_that_thinks_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "_TIMEOUT", httpx.Timeout(0.2))
    with socket.create_server(("127.0.0.1", 0)) as listening:  # the kernel accepts, nobody answers
        judge = Judge(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", "judge-1", None)
        with pytest.raises(JudgeSilent, match=r"gave no answer in 0\.2 s"):
            judge.ask(ASK, SCHEMA)
        judge.close()


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_the_judge_says_of_this_group_ends_it(fake: FakeJudge, status: int) -> None:
    with pytest.raises(JudgeRefused, match=f"the judge answered with {status}: context too long"):
        ask(fake, (status, "context too long"))


@pytest.mark.parametrize(
    "document",
    [
        "<html>",
        "",
        "[]",
        "null",
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": "x"}}], "usage": ["no"]},
        {"choices": [{"message": {"content": "x"}}], "usage": {"total_tokens": "many"}},
    ],
    ids=repr,
)
def test_what_is_no_chat_completion_is_refused(fake: FakeJudge, document: object) -> None:
    with pytest.raises(JudgeRefused, match="is not a chat completion"):
        ask(fake, (200, document))


@pytest.mark.parametrize("content", [None, "", " \n ", ["parts"]])
def test_silence_is_an_empty_answer(fake: FakeJudge, content: object) -> None:
    assert ask(fake, says(content)).content == ""


def test_half_a_surrogate_pair_is_shown_as_a_question_mark(fake: FakeJudge) -> None:
    assert ask(fake, (200, r'{"choices": [{"message": {"content": "a\ud800b"}}]}')).content == "a?b"


def test_a_judge_that_is_not_there() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        judge = Judge(f"http://127.0.0.1:{reserved.getsockname()[1]}/v1/", "judge-1", None)
        with pytest.raises(JudgeUnreachable, match=r"/v1/chat/completions does not answer .*SLIPSTREAM_JUDGE_BASE_URL"):
            judge.ask(ASK, SCHEMA)
        judge.close()


@pytest.mark.parametrize("url", ["judge.example", "http://[bad", "http://127.0.0.1:99999", "ftp://x"])
def test_an_address_that_is_none(url: str) -> None:
    judge = Judge(url, "judge-1", None)
    with pytest.raises(JudgeUnreachable, match="does not answer"):
        judge.ask(ASK, SCHEMA)
    judge.close()


def test_a_judge_that_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        judge = Judge(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", "judge-1", None)
        listening.settimeout(60)

        def hang_up() -> None:
            connection, _ = listening.accept()
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(JudgeUnreachable, match="does not answer"):
            judge.ask(ASK, SCHEMA)
        thread.join()
        judge.close()
