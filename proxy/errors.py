"""What can go wrong in the proxy, and how an agent is told.

* ProxyError             has an HTTP status and OpenAI's error form
  * BadTag               400: a session or scenario tag that cannot be used
  * BadRequest           400: a request to Slipstream's own API that cannot be read
  * Unauthorized         401: client keys are asked for, and none that is known was sent
  * NoSuchPath           404: not a path that is forwarded
  * NoSuchMethod         405: a path that is forwarded, asked by another method; answered as vLLM does
  * UnknownVersion       404: a version or a model that does not exist
  * TooSlow              408: a request that does not come to its end; clients make it again
  * TooLarge             413: a request body above the limit
  * TooManyCalls         429: as many calls under way as one client key may have
  * HeadersTooLarge      431: a request's headers above the limit
  * UpstreamUnreachable  502: vLLM does not answer
  * NotServing           503: vLLM answers, but cannot serve this call now
    * VersionLoading     the version that the call needs is loaded on no server
* UpstreamFault          vLLM refused what the proxy itself asked of it
* CannotServe            the proxy does not start, and says why
  * BadFolder            the data folder cannot be used
  * DataInUse            another proxy works on the data folder
  * PublicWithoutKeys    other machines could reach it, and no client key is asked for
"""

from __future__ import annotations

from typing import Self

import orjson

from storage.text import dumps
from storage.types import VersionNumber


class ProxyError(Exception):
    """Answered to the agent in the form that OpenAI's clients read."""

    status = 500
    type = "api_error"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """What the response carries besides."""

    @property
    def body(self) -> bytes:
        error = {"message": str(self), "type": self.type, "param": None, "code": self.status}
        return orjson.dumps({"error": error})

    @property
    def anthropic_body(self) -> bytes:
        """In the form that Anthropic's clients read."""
        return orjson.dumps({"type": "error", "error": {"type": self.type, "message": str(self)}})


class BadTag(ProxyError):
    status = 400
    type = "invalid_request_error"


class BadRequest(ProxyError):
    status = 400
    type = "invalid_request_error"


class Unauthorized(ProxyError):
    status = 401
    type = "authentication_error"
    headers = ((b"www-authenticate", b"Bearer"),)


class NoSuchPath(ProxyError):
    status = 404
    type = "not_found_error"


class NoSuchResponse(ProxyError):
    """In vLLM's words: another owner's response is none."""

    status = 404
    type = "invalid_request_error"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id '{response_id}' not found.")

    @property
    def body(self) -> bytes:
        error = {"message": str(self), "type": self.type, "param": "response_id", "code": self.status}
        return dumps({"error": error})


class NoSuchMethod(ProxyError):
    """vLLM's own words, so that nobody can tell; its server has another form for these than for its other errors."""

    status = 405

    def __init__(self, allowed: str) -> None:
        super().__init__("Method Not Allowed")
        self.headers = ((b"allow", allowed.encode()),)

    @property
    def body(self) -> bytes:
        return orjson.dumps({"detail": str(self)})

    anthropic_body = body


class UnknownVersion(ProxyError):
    status = 404
    type = "not_found_error"


class TooSlow(ProxyError):
    status = 408
    type = "invalid_request_error"


class TooLarge(ProxyError):
    status = 413
    type = "invalid_request_error"

    @classmethod
    def than(cls, limit: int) -> Self:
        return cls(f"the request's body is larger than {limit / 2**20:g} MiB")


class TooManyCalls(ProxyError):
    status = 429
    type = "rate_limit_error"
    headers = ((b"retry-after", b"1"),)


class HeadersTooLarge(ProxyError):
    status = 431
    type = "invalid_request_error"


class UpstreamUnreachable(ProxyError):
    status = 502


class NotServing(ProxyError):
    status = 503
    headers = ((b"retry-after", b"1"),)


class VersionLoading(NotServing):
    """No server has this version loaded and probed yet."""

    def __init__(self, version: VersionNumber) -> None:
        super().__init__(f"version {version} is being loaded into vLLM; repeat the call")
        self.version = version


class CannotServe(Exception):
    """The base of what keeps the proxy from starting; the text says what to do."""


class PublicWithoutKeys(CannotServe):
    """The text names the address, and how a first key is made."""


class BadFolder(CannotServe):
    """The text names the folder, and why it cannot be used."""


class DataInUse(CannotServe):
    """Two proxies cannot share a data folder; the text names it and says what to do."""


class UpstreamFault(Exception):
    """vLLM's answer to the proxy's own request: its text, and its status (None: there was no answer)."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """vLLM understood, and will not do it: trying again changes nothing."""
        return self.status is not None and 400 <= self.status < 500
