"""The bodies of requests to the admin API are JSON, whatever a request says of them."""

from __future__ import annotations

from proxy.asgi import Scope

_CONTENT_TYPE = b"content-type"


def as_json(scope: Scope) -> Scope:
    """The request, as one with JSON: `curl -d` calls its body a form, and other clients call it nothing.

    What keeps other sites' pages away is the admin key: no form and no link of theirs sends the header that it is in.
    """
    if scope["method"] != "POST":
        return scope
    headers = [field for field in scope["headers"] if field[0] != _CONTENT_TYPE]
    return {**scope, "headers": [*headers, (_CONTENT_TYPE, b"application/json")]}
