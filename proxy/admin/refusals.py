"""How the admin API says what is wrong with a request."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

from storage.text import dumps


async def say_unusable(_: Request, error: Exception) -> Response:
    """503: the database is locked, full or damaged, which passes by itself or by a person's hand."""
    detail = (
        f"the database cannot be used at the moment ({error}): repeat this when GET /admin/status says no more of it"
    )
    return Response(dumps({"detail": detail}), 503, media_type="application/json", headers={"retry-after": "1"})


async def refuse_body(_: Request, error: Exception) -> Response:
    """422 with what is wrong and where; what was sent is not repeated: it may be no JSON, or a secret."""
    assert isinstance(error, RequestValidationError)
    problems = [{name: problem[name] for name in ("loc", "msg", "type")} for problem in error.errors()]
    return Response(dumps({"detail": problems}), 422, media_type="application/json")
