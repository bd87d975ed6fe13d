"""What Slipstream recorded, compared with what the agents sent and got."""

from __future__ import annotations

import time
from pathlib import Path

from scripts.bench.proxying.load import Kept
from scripts.bench.proxying.replies import VARIANTS, Workload, reply
from storage import calls
from storage.database import Database
from storage.types import SessionKey

_LOOK_SECONDS = 0.02
_STALL_SECONDS = 30.0


class Records:
    """The database of the proxy under measurement, read beside it."""

    def __init__(self, data: Path) -> None:
        self._db = Database(data)

    def close(self) -> None:
        self._db.close()

    def newest(self) -> int:
        """The number of the last row; calls are never deleted here, so it counts them without reading them."""
        return self._db.number("SELECT max(seq) FROM calls")

    def rows(self) -> int:
        return self._db.number("SELECT count(*) FROM calls")

    def wait_for(self, count: int) -> None:
        """Until ``count`` calls are in the database, or none comes any more: the report then says what is missing."""
        seen, seen_at = self.newest(), time.monotonic()
        while seen < count and time.monotonic() - seen_at < _STALL_SECONDS:
            time.sleep(_LOOK_SECONDS)
            newest = self.newest()
            if newest > seen:
                seen, seen_at = newest, time.monotonic()

    def faults(self, kept: list[tuple[Workload, Kept]]) -> list[str]:
        """What the records of ``kept`` hold differently: request, response, prompt ids, sampled ids, logprobs."""
        found = []
        for workload, call in kept:
            differing = self._differing(workload, call)
            if differing:
                found.append(f"call {call.call_id}: {', '.join(differing)} not as it was")
        return found

    def _differing(self, workload: Workload, kept: Kept) -> list[str]:
        row = self._db.first("SELECT seq, session FROM calls WHERE id = ?", (kept.call_id,))
        if row is None:
            return ["the record is"]
        wanted = reply(workload.name, kept.session % VARIANTS, kept.turn)
        [recorded] = [c for c in calls.of_session(self._db, SessionKey(row["session"])) if c.seq == row["seq"]]
        choices = [(tuple(choice.ids), tuple(choice.logprobs)) for choice in recorded.choices]
        same = {
            "request": calls.body(self._db, row["seq"]) == kept.request,
            "response": calls.body(self._db, row["seq"], "response") == kept.body == wanted.body,
            "prompt ids": tuple(recorded.prompt_ids) == wanted.prompt_ids,
            "sampled ids": choices == [(wanted.ids, wanted.logprobs)],
            "trainable": recorded.not_trainable is None,
        }
        return [name for name, holds in same.items() if not holds]
