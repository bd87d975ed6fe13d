"""Promise 2, step by step: the last byte of a response leaves the proxy after its end is in the journal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.app import App
from storage.journal import Kind
from tests.fake_vllm import FakeVllm
from tests.proxy import raw
from tests.proxy.running import CHAT, RunningProxy, request, tags


@dataclass
class Witness:
    """Stands between the proxy and its server, and looks into the journal at each byte that leaves."""

    journal: Path
    seen: list[tuple[bool, bool]] = field(default_factory=list)
    """Of each message of a body: whether the client has everything with it, and whether the end is in the journal."""

    def wrap(self, app: App) -> Any:
        async def watched(scope: Any, receive: Any, send: Any) -> None:
            body, length = b"", -1

            async def look(message: Any) -> None:
                nonlocal body, length
                if message["type"] == "http.response.start":
                    length = int(dict(message["headers"]).get(b"content-length", -1))
                elif message["type"] == "http.response.body":
                    body += message["body"]
                    everything = b"data: [DONE]" in body or len(body) == length or not message.get("more_body")
                    self.seen.append((everything, self._ended()))
                await send(message)

            await app(scope, receive, look)

        return watched

    def _ended(self) -> bool:
        held = b"".join(path.read_bytes() for path in sorted(self.journal.glob("*.segment")))
        return b"SLJ2%c" % Kind.END in held


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "data" / "journal")


@pytest.fixture
def watched(own_fake: FakeVllm, tmp_path: Path, witness: Witness) -> Iterator[RunningProxy]:
    proxy = RunningProxy(tmp_path / "data", (own_fake.url,), own_fake.secret, wrap=witness.wrap)
    yield proxy
    proxy.stop()


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    "fault",
    [
        "none",
        "split:1",
        "split:9",
        "cut-done:1",
        "cut-done:12",
        "cut-done:13",
        "no-done",
        "error-frame",
        "bad-gateway",
        "bad-request",
    ],
)
def test_the_last_byte_leaves_after_the_end_is_recorded(
    watched: RunningProxy, witness: Witness, stream: bool, fault: str
) -> None:
    answer = raw.ask(watched.url, CHAT, request(stream=stream), tags("s", fault))
    assert answer.whole
    assert [ended for everything, ended in witness.seen if everything] == [True]
    assert not any(ended for everything, ended in witness.seen if not everything)
