"""Secrets in what others say: a server or a gateway that repeats a request in its error must not make them readable."""

from __future__ import annotations

_SHORTEST = 8
"""A key with fewer characters may be any word: `EMPTY` is one that many vLLMs are given."""


class Secrets:
    """The secrets that a request of ours carried; each is blotted out where it comes back."""

    def __init__(self, *secrets: str | None) -> None:
        """None, and what is too short to be one, is no secret."""
        known = {secret.encode() for secret in secrets if secret is not None and len(secret) >= _SHORTEST}
        self._known = tuple(sorted(known, key=len, reverse=True))

    def blot(self, data: bytes) -> bytes:
        """``data`` with an asterisk in place of each byte of a secret."""
        for secret in self._known:
            data = data.replace(secret, b"*" * len(secret))
        return data

    def begun(self, data: bytes) -> int:
        """How many of the last bytes of ``data`` may be the beginning of a secret."""
        longest = len(self._known[0]) - 1 if self._known else 0
        for size in range(min(longest, len(data)), 0, -1):
            if any(secret.startswith(data[-size:]) for secret in self._known):
                return size
        return 0


class Blotter:
    """`Secrets.blot` for bytes that come in pieces, cut anywhere."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """``data`` without secrets. At most a beginning of one is held back."""
        data = self._secrets.blot(self._held + data)
        begun = self._secrets.begun(data)
        self._held = data[len(data) - begun :]
        return data[: len(data) - begun]

    def end(self) -> bytes:
        """Nothing more comes: what was held back was no secret."""
        held, self._held = self._held, b""
        return held
