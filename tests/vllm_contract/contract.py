"""The tests that run on the fake vLLM and on a real one; they take the fixture `contract`, a `Vllm`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vllm_contract import known, requests
from tests.vllm_contract.asking import NONCE, Vllm
from tests.vllm_contract.requests import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Body, Request

KNOWN = known.read()
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
NAME = "contract@1"
EXPLORED = "temperature=1.0,top_p=1.0,top_k=0,min_p=0.0"

ONE_OF_EACH: dict[str, Body] = {
    CHAT: requests.chat(),
    COMPLETIONS: requests.text(),
    RESPONSES: requests.response(),
    MESSAGES: requests.message(),
}


def test_every_request_has_a_known_answer() -> None:
    assert KNOWN.keys() == requests.ALL.keys()


@pytest.mark.parametrize("name", requests.ALL)
def test_an_answer_has_its_shape(contract: Vllm, name: str) -> None:
    expected = {key: value for key, value in KNOWN[name].items() if key != "capture"}
    assert contract.ask(requests.ALL[name]).shape() == expected


@pytest.mark.parametrize("name", requests.GENERATING)
def test_a_captured_answer_has_the_same_shape_and_its_capture_its_own(contract: Vllm, name: str) -> None:
    expected = dict(KNOWN[name])
    captured = expected.pop("capture")
    answer = contract.ask(requests.GENERATING[name], contract.marked(contract.base))
    assert answer.shape() == expected
    assert answer.captured() == captured
    assert answer.capture is not None
    assert answer.capture["v"] == 3
    for choice in answer.capture["choices"]:
        assert len(choice["ids"]) == len(choice["logprobs"]) > 0
    if "kinds behind" in captured:
        assert answer.mark == "1 0"
    else:
        assert (answer.mark, answer.before) == (f"1 {answer.frame}", b"")


@pytest.mark.parametrize("name", [name for name in requests.WRONG if "unknown model" not in name])
def test_a_refusal_is_the_same_under_the_proxys_mark_and_carries_no_capture(contract: Vllm, name: str) -> None:
    answer = contract.ask(requests.WRONG[name], contract.marked(contract.base))
    assert answer.shape() == KNOWN[name]
    assert (answer.capture is None) == (answer.status != 200)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ONE_OF_EACH)
def test_an_adapter_that_is_not_loaded_is_vllms_404(contract: Vllm, path: str, stream: bool) -> None:
    body = {**ONE_OF_EACH[path], "stream": stream}
    direct = contract.post(path, {**body, "model": "nobody@9"})
    marked = contract.post(path, body, contract.marked("nobody@9"))
    assert (direct.status, marked.status) == (404, 404)
    assert marked.body == direct.body
    assert (marked.mark, marked.capture) == ("1 0", None)


def test_ids_and_logprobs_told_to_the_client_are_those_of_the_capture(contract: Vllm) -> None:
    body = requests.chat(n=2, temperature=1, seed=1, logprobs=True, top_logprobs=0, return_token_ids=True)
    answer = contract.post(CHAT, body, contract.marked(contract.base))
    assert answer.capture is not None
    assert answer.capture["prompts"] == [answer.json()["prompt_token_ids"]]
    for mine, theirs in zip(answer.capture["choices"], answer.json()["choices"], strict=True):
        assert (mine["index"], mine["prompt"], mine["finish"]) == (theirs["index"], 0, theirs["finish_reason"])
        assert mine["ids"] == theirs["token_ids"]
        assert mine["logprobs"] == [token["logprob"] for token in theirs["logprobs"]["content"]]


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_several_prompts_are_counted_prompt_by_prompt(contract: Vllm, stream: bool) -> None:
    body = requests.text(prompt=["One, two,", "The sky is"], n=2, temperature=1, seed=1, max_tokens=5, stream=stream)
    answer = contract.post(
        COMPLETIONS, body | {"logprobs": 0, "return_token_ids": True}, contract.marked(contract.base)
    )
    assert answer.capture is not None
    found = [(choice["index"], choice["prompt"]) for choice in answer.capture["choices"]]
    assert found == [(0, 0), (1, 0), (2, 1), (3, 1)]
    for mine in answer.capture["choices"]:
        theirs = answer.choices(mine["index"])
        assert mine["ids"] == [token for part in theirs for token in part["token_ids"]]
        assert mine["logprobs"] == [one for part in theirs for one in part["logprobs"]["token_logprobs"]]
        assert answer.capture["prompts"][mine["prompt"]] == theirs[0]["prompt_token_ids"]


SAMPLINGS: dict[str, tuple[str, Body, Body]] = {
    "vLLM's own": (
        CHAT,
        {"messages": [requests.USER], "max_tokens": 3},
        {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        | {"repetition_penalty": 1.0, "seed": None, "n": 1, "min_tokens": 0, "logit_bias": False, "structured": False}
        | {"logits_processors": False, "max_tokens": 3},
    ),
    "chat": (
        CHAT,
        requests.chat(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, presence_penalty=0.5, max_tokens=3)
        | {"frequency_penalty": 0.25, "repetition_penalty": 1.5, "n": 2, "logit_bias": {"5": 1.0}, "min_tokens": 1},
        {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "presence_penalty": 0.5, "n": 2}
        | {"frequency_penalty": 0.25, "repetition_penalty": 1.5, "logit_bias": True, "min_tokens": 1, "max_tokens": 3},
    ),
    "completion": (COMPLETIONS, {"prompt": "The sky is", "seed": 2}, {"max_tokens": 16, "temperature": 1.0, "seed": 2}),
    "response": (
        RESPONSES,
        requests.response(temperature=0.5, top_p=0.9),
        {"temperature": 0.5, "top_p": 0.9, "max_tokens": 4},
    ),
    "message": (
        MESSAGES,
        requests.message(temperature=0.5, top_k=7),
        {"temperature": 0.5, "top_k": 7, "max_tokens": 4},
    ),
    "schema": (CHAT, {**requests.ENDING, "response_format": requests.FORM}, {"structured": True}),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_sampling_of_a_capture_is_what_was_asked_for_and_vllms_own(contract: Vllm, name: str) -> None:
    path, body, expected = SAMPLINGS[name]
    answer = contract.post(path, body, contract.marked(contract.base))
    assert answer.capture is not None
    sampling = answer.capture["sampling"]
    assert {key: sampling[key] for key in expected} == expected


@pytest.mark.parametrize("path", ONE_OF_EACH)
def test_an_explored_call_is_sampled_as_the_mark_says(contract: Vllm, path: str) -> None:
    mark = contract.marked(contract.base, "temperature=1.5,top_p=0.9,top_k=50,min_p=0.0")
    answer = contract.post(path, {**ONE_OF_EACH[path], "temperature": 0.25, "top_p": 0.5}, mark)
    assert answer.capture is not None
    expected = {"temperature": 1.5, "top_p": 0.9, "top_k": 50, "min_p": 0.0}
    assert {key: answer.capture["sampling"][key] for key in expected} == expected
    if path == RESPONSES:  # which tells the client what it asked for
        told = answer.json()
        assert (told["temperature"], told["top_p"], told["top_logprobs"]) == (0.25, 0.5, None)


def test_a_greedy_response_tells_that_nothing_is_cut_off(contract: Vllm) -> None:
    told = contract.post(RESPONSES, requests.response(temperature=0, top_p=0.5)).json()
    assert (told["temperature"], told["top_p"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "mark",
    [
        "wrong {nonce} {base}",
        "{secret} short {base}",
        "{secret}",
        "{secret} {nonce}",
        "{secret} {nonce} {base} nonsense",
        "{secret} {nonce} {base} temperature=2.0",
        "{secret} {nonce} {base} temperature=x,top_p=1.0,top_k=0,min_p=0.0",
        "{secret} {nonce} {base} " + EXPLORED + " more",
    ],
)
def test_a_bad_mark_is_as_good_as_none(contract: Vllm, mark: str) -> None:
    headers = {"x-slipstream": mark.format(secret=contract.secret, nonce=NONCE, base=contract.base)}
    unknown = contract.post(CHAT, {**requests.chat(), "model": "gpt-4o"}, headers)
    assert (unknown.status, unknown.mark, unknown.capture) == (404, None, None)
    known = contract.post(CHAT, requests.chat(), headers)
    assert (known.status, known.mark, known.capture) == (200, None, None)


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere"])
def test_the_plugin_shows_itself_to_the_proxy_alone(contract: Vllm, path: str) -> None:
    assert contract.get(path, contract.marked("-")).mark == "1 0"
    assert contract.get(path).mark is None


def test_who_asks_as_the_body_says_is_answered_uncaptured(contract: Vllm) -> None:
    answer = contract.post(CHAT, requests.chat(), contract.marked("-"))
    assert (answer.status, answer.mark, answer.capture) == (200, "1 0", None)


# --- Adapters -------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(contract: Vllm) -> Iterator[Vllm]:
    answer = contract.post(LOAD, {"lora_name": NAME, "lora_path": str(contract.adapter)})
    assert answer.status == 200
    assert answer.body.decode() == f"Success: LoRA adapter '{NAME}' added successfully."
    yield contract
    contract.post(UNLOAD, {"lora_name": NAME})


def test_models_are_listed_as_cards_with_their_parents(loaded: Vllm) -> None:
    document = loaded.get("/v1/models").json()
    assert document.keys() == {"object", "data"}
    base, *_, card = document["data"]
    fields = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
    assert base.keys() == card.keys() == fields
    assert (base["id"], base["object"], base["parent"]) == (loaded.base, "model", None)
    assert isinstance(base["max_model_len"], int)
    assert isinstance(base["root"], str)
    assert (card["id"], card["parent"], card["root"]) == (NAME, loaded.base, str(loaded.adapter))
    assert card["max_model_len"] is None
    (permission,) = card["permission"]
    told = {"object": "model_permission", "allow_sampling": True, "organization": "*", "group": None}
    assert {key: permission[key] for key in told} == told
    assert permission.keys() == base["permission"][0].keys()


@pytest.mark.parametrize("path", ONE_OF_EACH)
def test_the_mark_names_who_answers_and_the_body_is_echoed(loaded: Vllm, path: str) -> None:
    body = {**ONE_OF_EACH[path], "model": "gpt-4o"}
    marked = loaded.post(path, body, loaded.marked(NAME))
    assert marked.status == 200
    assert marked.json()["model"] == "gpt-4o"
    own = loaded.post(path, {**body, "model": NAME})
    assert own.json()["model"] == NAME
    unmarked = loaded.post(path, body)
    assert unmarked.status == 404


def test_an_adapter_answers_otherwise_than_its_base(loaded: Vllm) -> None:
    ids = {"logprobs": True, "return_token_ids": True}
    told = [loaded.post(CHAT, requests.chat(model=name, **ids)).json()["choices"][0] for name in (loaded.base, NAME)]
    values = [[token["logprob"] for token in one["logprobs"]["content"]] for one in told]
    assert (told[0]["token_ids"], values[0]) != (told[1]["token_ids"], values[1])


def test_an_unloaded_adapter_is_gone(loaded: Vllm) -> None:
    answer = loaded.post(UNLOAD, {"lora_name": NAME})
    assert (answer.status, answer.body.decode()) == (200, f"Success: LoRA adapter '{NAME}' removed successfully.")
    assert NAME not in [card["id"] for card in loaded.get("/v1/models").json()["data"]]
    status, kind, message = loaded.post(CHAT, requests.chat(), loaded.marked(NAME)).error()
    assert (status, kind) == (404, "NotFoundError")
    assert message.startswith(f"The model `{NAME}` does not exist.")


def test_a_second_load_under_the_same_name_is_refused(loaded: Vllm) -> None:
    status, kind, message = loaded.post(LOAD, {"lora_name": NAME, "lora_path": str(loaded.adapter)}).error()
    assert (status, kind) == (400, "InvalidUserInput")
    assert message.startswith(f"The lora adapter '{NAME}' has already been loaded.")


_NEW = "contract@2"
_INVALID = (400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
_MALFORMED = (400, "Bad Request", "1 validation error:")
REFUSED_LOADS: dict[str, tuple[Request, tuple[int, str, str]]] = {
    "missing folder": (
        Request(LOAD, {"lora_name": _NEW, "lora_path": f"/nowhere/{_NEW}"}),
        (404, "NotFoundError", f"Loading lora {_NEW} failed: No adapter found for /nowhere/{_NEW}"),
    ),
    "no path": (Request(LOAD, {"lora_name": _NEW}), _MALFORMED),
    "empty path": (Request(LOAD, {"lora_name": _NEW, "lora_path": ""}), _INVALID),
    "empty name": (Request(LOAD, {"lora_name": "", "lora_path": "/a"}), _INVALID),
    "number": (Request(LOAD, {"lora_name": 7, "lora_path": "/a"}), _MALFORMED),
    "no JSON": (Request(LOAD, b"{"), _MALFORMED),
    "unload of nobody": (
        Request(UNLOAD, {"lora_name": "nobody"}),
        (404, "NotFoundError", "The lora adapter 'nobody' cannot be found."),
    ),
    "unload of nothing": (Request(UNLOAD, {}), _MALFORMED),
}


@pytest.mark.parametrize("name", REFUSED_LOADS)
def test_an_adapter_that_cannot_be_served_is_refused(contract: Vllm, name: str) -> None:
    request, (status, kind, message) = REFUSED_LOADS[name]
    found = contract.ask(request).error()
    assert found[:2] == (status, kind)
    assert found[2].startswith(message)


def test_the_base_model_is_neither_loaded_over_nor_unloaded(contract: Vllm) -> None:
    over = contract.post(LOAD, {"lora_name": contract.base, "lora_path": str(contract.adapter)})
    assert over.error()[:2] == (400, "InvalidUserInput")
    assert contract.post(UNLOAD, {"lora_name": contract.base}).error()[:2] == (404, "NotFoundError")
    assert contract.post(CHAT, requests.chat()).status == 200
