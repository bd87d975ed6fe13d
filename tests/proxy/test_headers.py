"""Headers that are for one connection alone end with it."""

from __future__ import annotations

from proxy import headers

FIELDS = [(b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"keep-alive", b"5"), (b"te", b"x"), (b"x-end", b"2")]


def test_what_connection_names_goes_no_further_either_way() -> None:
    assert headers.sent(FIELDS) == [(b"x-end", b"2")]
    assert headers.returned(FIELDS) == [(b"x-end", b"2")]
