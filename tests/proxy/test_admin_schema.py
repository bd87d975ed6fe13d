"""The admin API holds what its schema says, whatever is sent: schemathesis makes the requests up."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import ignored_auth, negative_data_rejection

from proxy.app import App
from proxy.settings import ProxySettings
from tests.proxy.running import ADMIN_KEY, RunningProxy, tags


def _operation(result: Any) -> Any:
    """An operation of the schema; raises where schemathesis cannot read it."""
    return result.ok()


_DOCUMENT = App(ProxySettings()).fastapi.openapi()
_SCHEMA = schemathesis.openapi.from_dict(_DOCUMENT)
OPERATIONS = {operation.label: operation for operation in map(_operation, _SCHEMA.get_all_operations())}
OPEN = ("GET /health", "GET /ready")
TAKES_SOMETHING = [
    f"{method.upper()} {path}"
    for path, methods in _DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if "parameters" in operation or "requestBody" in operation
]
_NO_TRAINER = ("POST /admin/train", 503)
_ELSEWHERE = [
    not_a_server_error,  # all but one 503 are refused below
    ignored_auth,  # the test without a key
    negative_data_rejection,  # a parameter that no route has is passed over, as FastAPI does
]

made_up = settings(
    max_examples=25, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def test_the_schema_names_the_routes() -> None:
    assert {"GET /admin/status", "GET /admin/sessions", "DELETE /admin/keys/{name}", *OPEN} <= set(OPERATIONS)
    assert {"GET /admin/sessions", "POST /admin/train", "POST /admin/keys"} <= set(TAKES_SOMETHING)


@pytest.mark.parametrize(
    ("label", "mode"),
    [(label, GenerationMode.POSITIVE) for label in OPERATIONS]
    + [(label, GenerationMode.NEGATIVE) for label in TAKES_SOMETHING],
)
def test_answers_fit_the_schema_and_nothing_fails(proxy: RunningProxy, label: str, mode: GenerationMode) -> None:
    @made_up
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case[Any]) -> None:
        answer = case.call(base_url=proxy.url, headers={"authorization": f"Bearer {ADMIN_KEY}"})
        case.validate_response(answer, excluded_checks=_ELSEWHERE)
        assert answer.status_code < 500 or (label, answer.status_code) == _NO_TRAINER

    proxy.chat(headers=tags("a session"))
    check()


@pytest.mark.parametrize("label", sorted(set(OPERATIONS) - set(OPEN)))
def test_without_the_key_every_route_is_closed(proxy: RunningProxy, label: str) -> None:
    @made_up
    @given(case=OPERATIONS[label].as_strategy())
    def check(case: schemathesis.Case[Any]) -> None:
        for given_key in ("", "Bearer ", "Bearer wrong", f"Basic {ADMIN_KEY}", ADMIN_KEY):
            answer = case.call(base_url=proxy.url, headers={"authorization": given_key})
            # A path with a line break in a session id is none, or one, as Starlette's patterns have it.
            is_a_path = "{session_id}" not in label or "%0A" not in str(case.path_parameters)
            assert answer.status_code in ((401,) if is_a_path else (401, 404))

    check()
