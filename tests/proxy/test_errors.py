"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import orjson
import pytest

from proxy import errors
from proxy.errors import ProxyError, UpstreamFault

FORMS = [
    (errors.BadTag, 400, "invalid_request_error"),
    (errors.BadRequest, 400, "invalid_request_error"),
    (errors.Unauthorized, 401, "authentication_error"),
    (errors.NoSuchPath, 404, "not_found_error"),
    (errors.UnknownVersion, 404, "not_found_error"),
    (errors.TooSlow, 408, "invalid_request_error"),
    (errors.TooLarge, 413, "invalid_request_error"),
    (errors.TooManyCalls, 429, "rate_limit_error"),
    (errors.HeadersTooLarge, 431, "invalid_request_error"),
    (errors.UpstreamUnreachable, 502, "api_error"),
    (errors.NotServing, 503, "api_error"),
]


@pytest.mark.parametrize(("kind", "status", "name"), FORMS)
def test_an_error_has_openais_form(kind: type[ProxyError], status: int, name: str) -> None:
    error = kind("the “reason”")
    assert error.status == status
    assert orjson.loads(error.body) == {
        "error": {"message": "the “reason”", "type": name, "param": None, "code": status}
    }


def test_every_error_is_in_the_list() -> None:
    assert {kind for kind, *_ in FORMS} | {errors.NoSuchMethod, errors.NoSuchResponse} == set(
        ProxyError.__subclasses__()
    )


def test_a_response_that_is_not_there_is_told_as_vllm_tells_it() -> None:
    message = "Response with id 'resp_?' not found."
    for name in ("resp_?", "resp_\ud800"):
        error = errors.NoSuchResponse(name)
        told = {"message": message, "type": "invalid_request_error", "param": "response_id", "code": 404}
        assert (error.status, orjson.loads(error.body)) == (404, {"error": told})


def test_another_method_is_answered_as_vllm_answers_it() -> None:
    error = errors.NoSuchMethod("POST")
    assert (error.status, error.body) == (405, b'{"detail":"Method Not Allowed"}')
    assert error.headers == ((b"allow", b"POST"),)


@pytest.mark.parametrize(("status", "refusal"), [(None, False), (400, True), (404, True), (499, True), (500, False)])
def test_a_refusal_is_what_repeating_does_not_change(status: int | None, refusal: bool) -> None:
    assert UpstreamFault("text", status).is_refusal is refusal
