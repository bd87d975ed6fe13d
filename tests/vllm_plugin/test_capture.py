"""The middleware over a small application: header, frame, placement, who answers, refusals."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.vllm_plugin.capture import CaptureMiddleware, Mark, read_mark
from proxy.vllm_plugin.recording import Call, Generation
from tests.captures import unpacked

SECRET = "s3cret"
NONCE = "0123456789abcdef" * 2
GOOD = f"{SECRET} {NONCE} policy%401"

Messages = list[dict[str, Any]]


async def ask(application: Any, header: str | None, path: str = "/v1/chat/completions") -> Messages:
    headers = [(b"content-type", b"application/json")]
    if header is not None:
        headers.append((b"X-Slipstream", header.encode()))
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await CaptureMiddleware(application)(scope, receive, send)
    return sent


def header_of(sent: Messages) -> bytes | None:
    return dict(sent[0]["headers"]).get(b"x-slipstream")


def frame_of(message: dict[str, Any]) -> dict[str, Any]:
    head, _, payload = message["body"].partition(b"\n")
    assert head == b"\x1e" + NONCE.encode() + b" " + str(len(payload)).encode()
    assert message["more_body"] is True
    return unpacked(payload)


@pytest.mark.parametrize(
    ("value", "mark"),
    [
        (GOOD, Mark(NONCE, "policy@1")),
        (f"{SECRET} {NONCE} -", Mark(NONCE, "-")),
        (f"{SECRET} {NONCE} a%2Fb%20c%C3%A9", Mark(NONCE, "a/b cé")),
        (f"wrong {NONCE} policy%401", None),
        (f"{SECRET}x {NONCE} policy%401", None),
        (f" {NONCE} policy%401", None),
        (f"{SECRET} {NONCE[1:]} policy%401", None),
        (f"{SECRET} {NONCE.upper()} policy%401", None),
        (f"{SECRET} {NONCE}\n policy%401", None),
        (f"{SECRET} {NONCE}", None),
        (f"{SECRET} {NONCE} ", None),
        (f"{SECRET} {NONCE} a b", None),
        (f"{SECRET} {NONCE} %ff", None),
        (f"{SECRET} {NONCE} é", None),
        ("", None),
    ],
)
def test_the_mark_of_a_request(value: str, mark: Mark | None) -> None:
    assert read_mark([(b"x-slipstream", value.encode())], SECRET.encode()) == mark


def test_no_mark_and_two_marks_are_none() -> None:
    assert read_mark([(b"host", b"a")], SECRET.encode()) is None
    assert read_mark([(b"x-slipstream", GOOD.encode())] * 2, SECRET.encode()) is None


async def test_a_server_with_raw_logprobs_is_not_trainable(application: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application.engine.model_config, "logprobs_mode", "raw_logprobs")
    _, frame, body = await ask(application, GOOD)
    payload = frame_of(frame)
    assert payload["reason"] == "the server runs without --logprobs-mode processed_logprobs"
    assert payload["choices"] == []
    assert json.loads(body["body"])["model"] == "gpt-4o"


async def test_a_plain_response_begins_with_the_capture(application: Any) -> None:
    application.params.n = 2
    start, frame, body = await ask(application, GOOD)
    content = json.loads(body["body"])
    assert (content["model"], content["by"]) == ("gpt-4o", "the adapter policy@1")
    headers = dict(start["headers"])
    assert headers[b"x-slipstream"] == b"1 %d" % len(frame["body"])
    assert int(headers[b"content-length"]) == len(frame["body"]) + len(body["body"])
    assert frame_of(frame) == {
        "v": 3,
        "reason": None,
        "prompts": [[1, 2]],
        "choices": [
            {
                "index": i,
                "prompt": 0,
                "ids": [100 + 10 * i, 101 + 10 * i, 102 + 10 * i],
                "logprobs": [-0.5, -1.0, -1.5],
                "finish": "length",
                "stop": None,
            }
            for i in (0, 1)
        ],
        "sampling": {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": None,
            "n": 2,
            "max_tokens": 3,
            "min_tokens": 0,
            "logit_bias": False,
            "structured": False,
            "logits_processors": False,
        },
    }


@pytest.mark.parametrize("kind", ["DELTA", "CUMULATIVE", "FINAL_ONLY"])
async def test_live_lists_are_copied_whatever_the_kind_of_output(application: Any, kind: str) -> None:
    application.params.output_kind = SimpleNamespace(name=kind)
    _, frame, _ = await ask(application, GOOD)
    (choice,) = frame_of(frame)["choices"]
    assert choice["ids"] == [100, 101, 102]
    assert choice["logprobs"] == [-0.5, -1.0, -1.5]


async def test_the_clients_parameters_are_left_alone(application: Any) -> None:
    await ask(application, GOOD)
    assert application.params.logprobs is None
    assert application.engine.seen.logprobs == 0


async def test_an_explored_call_is_sampled_as_ordered_and_recorded_so(application: Any) -> None:
    application.params.temperature = 0.0
    _, frame, _ = await ask(application, f"{GOOD} temperature=2.0,top_p=0.9,top_k=50,min_p=0.0")
    seen, sampling = application.engine.seen, frame_of(frame)["sampling"]
    assert (seen.temperature, seen.top_p, seen.top_k) == (2.0, 0.9, 50)
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (2.0, 0.9, 50)
    assert application.params.temperature == 0.0


@pytest.mark.parametrize("asked", [{"logprobs": 5}, {"logprob_token_ids": [7]}])
async def test_logprobs_that_the_client_asked_for_stay_as_asked(application: Any, asked: dict[str, Any]) -> None:
    vars(application.params).update(asked)
    await ask(application, GOOD)
    assert application.engine.seen.logprobs == asked.get("logprobs")


async def test_choices_of_several_prompts_are_counted_as_the_client_sees_them(application: Any) -> None:
    application.params.n = 2
    application.prompts = [{"type": "token", "prompt_token_ids": [p]} for p in (1, 2)]
    _, frame, _ = await ask(application, GOOD, "/v1/completions")
    capture = frame_of(frame)
    assert capture["prompts"] == [[1], [2]]
    assert [(one["index"], one["prompt"], one["ids"][0]) for one in capture["choices"]] == [
        (0, 0, 100),
        (1, 0, 110),
        (2, 1, 200),
        (3, 1, 210),
    ]


async def test_in_a_stream_the_capture_is_ahead_of_the_finish(application: Any) -> None:
    application.stream, application.request.model = True, "policy@1"
    unmarked = await ask(application, None)
    start, *bodies = await ask(application, GOOD)
    assert header_of([start]) == b"1 0"
    at = next(i for i, message in enumerate(bodies) if message["body"].startswith(b"\x1e"))
    capture = frame_of(bodies.pop(at))
    assert capture["choices"][0]["ids"] == [100, 101, 102]
    assert b'"finish": null' in bodies[at - 1]["body"]
    assert b'"finish": "length"' in bodies[at]["body"]
    # All else is as it was: the same messages, one by one.
    assert bodies == unmarked[1:]


async def test_a_stream_of_two_prompts_waits_for_the_last(application: Any) -> None:
    application.stream = True
    application.prompts = [{"type": "token", "prompt_token_ids": [p]} for p in (1, 2)]
    _, *bodies = await ask(application, GOOD)
    (at,) = [i for i, message in enumerate(bodies) if message["body"].startswith(b"\x1e")]
    assert b'"ids": [202]' in bodies[at + 1]["body"]
    assert [one["index"] for one in frame_of(bodies[at])["choices"]] == [0, 1]


async def test_an_engine_that_fails_in_a_stream_is_told_before_the_error(application: Any) -> None:
    application.stream, application.request_id = True, "fails"
    _, *bodies = await ask(application, GOOD)
    capture = frame_of(bodies[1])
    assert capture["reason"] == "a generation ended before it was finished"
    assert capture["choices"][0]["ids"] == [100]
    assert b"error" in bodies[2]["body"]
    assert [message["body"].startswith(b"\x1e") for message in bodies].count(True) == 1


async def test_an_unknown_adapter_is_a_404_and_never_the_base_model(application: Any) -> None:
    for skip in (False, True):
        application.serving.skip_validation = skip
        start, body = await ask(application, f"{SECRET} {NONCE} policy%409")
        assert start["status"] == 404
        assert header_of([start]) == b"1 0"
        assert json.loads(body["body"]) == {"error": "The model `policy@9` does not exist."}


async def test_the_base_model_answers_under_the_name_that_the_client_wrote(application: Any) -> None:
    for asked, shown in (("gpt-4o", "gpt-4o"), ("policy@1", "policy@1"), (None, "base")):
        application.request.model = asked
        _, _, body = await ask(application, f"{SECRET} {NONCE} base")
        content = json.loads(body["body"])
        assert (content["model"], content["by"]) == (shown, None)
        assert application.request.model == asked


@pytest.mark.parametrize("header", [None, f"wrong {NONCE} policy%401", f"{SECRET} x policy%401"])
async def test_without_a_good_mark_the_plugin_is_not_there(application: Any, header: str | None) -> None:
    application.request.model = "policy@1"
    sent = await ask(application, header)
    assert header_of(sent) is None
    assert len(sent) == 2
    assert application.engine.seen is application.params
    assert [name for name, _ in application.requests[0]["headers"]] == [b"content-type"]


async def test_the_secret_never_reaches_vllm(application: Any) -> None:
    await ask(application, GOOD)
    assert SECRET not in str(application.requests)


async def test_as_the_body_says_captures_nothing(application: Any) -> None:
    application.request.model = "policy@1"
    sent = await ask(application, f"{SECRET} {NONCE} -")
    assert header_of(sent) == b"1 0"
    assert len(sent) == 2
    assert application.engine.seen is application.params


async def test_other_paths_are_answered_by_the_named_model_and_not_captured(application: Any) -> None:
    start, body = await ask(application, GOOD, "/tokenize")
    assert header_of([start]) == b"1 0"
    assert json.loads(body["body"])["by"] == "the adapter policy@1"


@pytest.mark.parametrize(
    ("request_change", "reason"),
    [
        ({"use_beam_search": True}, "beam search"),
        ({"background": True}, "background"),
        ({"prompt_embeds": b"..."}, "prompt_embeds"),
        ({"echo": True, "max_tokens": 0}, "echo"),
    ],
)
async def test_requests_that_cannot_be_trained_on_say_why(
    application: Any, request_change: dict[str, Any], reason: str
) -> None:
    vars(application.request).update(request_change)
    _, frame, body = await ask(application, GOOD)
    capture = frame_of(frame)
    assert capture["reason"].startswith(reason)
    assert capture["choices"] == []
    assert json.loads(body["body"])["ids"]
    assert application.engine.seen is application.params


@pytest.mark.parametrize("kind", ["embeds", "multimodal", "enc_dec"])
async def test_prompts_that_are_more_than_their_ids_say_so(application: Any, kind: str) -> None:
    application.prompts[0]["type"] = kind
    _, frame, _ = await ask(application, GOOD)
    assert frame_of(frame)["reason"] is not None


async def test_a_generator_that_is_left_early_is_closed_at_once(application: Any) -> None:
    CaptureMiddleware(application)
    from proxy.vllm_plugin import engine

    token = engine.CURRENT.set(Call(NONCE, "base"))
    outputs = application.engine.generate(application.prompts[0], application.params, "works")
    engine.CURRENT.reset(token)
    await anext(outputs)
    await outputs.aclose()
    assert application.engine.closed == 1


def test_missing_and_infinite_logprobs_are_a_reason_and_never_padded(application: Any) -> None:
    for given in ([{5: SimpleNamespace(logprob=float("-inf"))}], [{6: SimpleNamespace(logprob=-1.0)}], None):
        call = Call(NONCE, "base")
        generation = call.begin(application.prompts[0], application.params)
        part = SimpleNamespace(index=0, token_ids=[5], logprobs=given, finish_reason="stop", stop_reason=None)
        call.add(generation, SimpleNamespace(prompt_token_ids=[1], outputs=[part], finished=True))
        payload = unpacked(call.payload())
        assert payload["reason"] == "vLLM left out the logprob of a sampled token"
        assert payload["choices"][0]["logprobs"] == []


def test_a_second_generation_after_the_first_is_a_reason(application: Any) -> None:
    call = Call(NONCE, "base")
    call.begin(application.prompts[0], application.params).ended = True
    call.begin(application.prompts[0], application.params)
    assert unpacked(call.payload())["reason"].startswith("built-in tools")


def test_an_output_of_unknown_form_is_a_reason_and_no_error(application: Any) -> None:
    call = Call(NONCE, "base")
    generation: Generation = call.begin(application.prompts[0], application.params)
    call.add(generation, SimpleNamespace(prompt_token_ids=[1], outputs=[object()], finished=True))
    assert unpacked(call.payload())["reason"].startswith("capture failed: AttributeError")
    strange = Call(NONCE, "base")
    strange.begin(application.prompts[0], application.params).prompt = [object()]  # type: ignore[list-item]
    assert b'"reason":"capture failed: TypeError' in strange.frame()
