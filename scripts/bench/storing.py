"""What recording, listing and the trainer's pick-up cost with a million calls in the database, against ten thousand.

Both databases are there at once and measured in turns, through the program's own storage. Run it as
``./scripts/bench/storage [--quick] [--json FILE]``: a few minutes and 3 GB of disk; ``--quick``: a hundred thousand
calls instead of a million, half a minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from proxy.dialects import read_call
from storage import calls, groups, rewards, sessions
from storage.database import FILE, Database
from storage.figures import file_size
from storage.ingest import Ingestion
from storage.journal import JournalWriter, Kind
from storage.records import Close, pack_close, pack_end, pack_reward, pack_start
from storage.states import CallOutcome, ClosedBy, GroupState, Outcome, SessionState
from storage.types import (
    DEFAULT_OWNER,
    CallEnd,
    CallId,
    CallStart,
    GroupId,
    Identity,
    Reward,
    RunId,
    SessionKey,
    VersionNumber,
    new_id,
)

SMALL, TURNS, GROUP, ROUNDS = 10_000, 10, 8, 15
RECORDED = 40
"""Sessions that one round records."""
LIMIT = 1.5

_text = " ".join(f"word{n * n % 997}" for n in range(60))
_numbers = itertools.count(1)


class Place:
    """A data folder that is recorded into, listed and picked up from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = Database(folder)
        self.writer = JournalWriter(folder / "journal", after=self.db.number("SELECT segment FROM journal_position"))
        self.ingestion = Ingestion(folder, self.writer.tail, read_call)

    def record(self, number: int) -> None:
        """So many sessions of ten turns into the journal, ended and rewarded."""
        for _ in range(number):
            session = f"session {next(_numbers)}"
            self._session(Identity(DEFAULT_OWNER, session), f"scenario {next(_numbers) % 200}")

    def take_in(self) -> None:
        while self.ingestion.run_once():
            assert self.ingestion.problem is None

    def _session(self, identity: Identity, scenario: str) -> None:
        messages: list[dict[str, str]] = [{"role": "system", "content": _text}]
        ids = list(range(200))
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"{turn} {_text}"})
            ids += range(100)
            call = CallId(new_id())
            start = CallStart(
                id=call,
                identity=identity,
                scenario=scenario,
                split="train",
                agent=None,
                dialect="chat",
                path="/v1/chat/completions",
                model="agent",
                version=VersionNumber(turn % 3),
                pinned=VersionNumber(next(_numbers) % 3),
                upstream="http://vllm",
                streamed=False,
                started_at=time.time(),
            )
            answer = {"role": "assistant", "content": f"{turn} {_text[:100]}"}
            response = {"id": call, "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}
            sampled = list(range(30))
            choice = {"index": 0, "ids": sampled, "logprobs": [-0.5] * 30, "finish": "stop"}
            capture = {"reason": None, "prompts": [ids], "choices": [choice], "sampling": {"temperature": 1.0}}
            request = orjson.dumps({"model": "agent", "messages": messages})
            self.writer.append((Kind.START, call, pack_start(start), request))
            self.writer.append((Kind.PIECE, call, orjson.dumps(response)))
            self.writer.append((Kind.CAPTURE, call, orjson.dumps(capture)))
            end = CallEnd(CallOutcome.COMPLETE, 200, None, time.time(), time.time())
            self.writer.append((Kind.END, call, pack_end(end)))
            messages.append(answer)
            ids += sampled
        reward = Reward(new_id(), identity, None, "reward", "client", 0.5, None, time.time())
        self.writer.append((Kind.REWARD, reward.id, pack_reward(reward)))
        self.writer.append((Kind.CLOSE, new_id(), pack_close(Close(identity, ClosedBy.ENDED, time.time()))))

    def pick_up(self) -> None:
        """What the trainer does with each group of eight: claim it, read it, say what became of it."""
        found = sessions.waiting(self.db)
        by_scenario = found[: len(found) // GROUP * GROUP]
        for at in range(0, len(by_scenario), GROUP):
            members = by_scenario[at : at + GROUP]
            self.db.execute(
                f"UPDATE sessions SET scenario = 'one' WHERE key IN ({', '.join(str(m.key) for m in members)})"
            )
            group = GroupId(new_id())
            same = [sessions.get(self.db, member.key) for member in members]
            assert groups.claim(self.db, group, same, time.time())
            for member in same:
                steps = calls.of_session(self.db, member.key)
                calls.transcript(self.db, steps[-1].seq)
                rewards.of_session(self.db, member.key)
            (ready,) = groups.in_state(self.db, GroupState.READY)
            with self.db.transaction():
                groups.set_scores(self.db, ready, ready.members, groups.Verdict("judge", 1), time.time())
            (scored,) = groups.in_state(self.db, GroupState.SCORED)
            assert groups.failed_runs(self.db, scored.id) == 0
            with self.db.transaction():
                groups.move(self.db, scored, GroupState.TRAINED, run=RunId("r"))
                for member in same:
                    sessions.set_outcome(self.db, member.key, Outcome.TRAINED, None, RunId("r"), time.time())

    def list(self) -> None:
        """The admin's pages by every filter, a session's calls, and the figures of the status."""
        filters: list[dict[str, Any]] = [
            {},
            {"scenario": "scenario 7"},
            {"state": SessionState.CLOSED},
            {"state": SessionState.OPEN},
            {"version": 1},
            {"owner": DEFAULT_OWNER},
            {"owner": "nobody"},
            {"scenario": "scenario 7", "state": SessionState.CLOSED},
            {"state": SessionState.SKIPPED, "version": 2},
        ]
        for where in filters:
            page = sessions.rows(self.db, where, 100, None)
            if len(page) == 100:
                sessions.rows(self.db, where, 100, page[-1]["key"])
        for found in ({}, {"state": GroupState.TRAINED}, {"scenario": "one"}):
            groups.rows(self.db, dict(found), 100, None)
        newest = sessions.rows(self.db, {}, 1, None)[0]
        calls.rows(self.db, SessionKey(newest["key"]))
        sessions.states(self.db)
        sessions.count_skipped(self.db, sessions.UNTAGGED)
        sessions.alone(self.db, 1000)
        groups.states(self.db)

    def multiply(self, times: int, say: Callable[[str], None]) -> None:
        """Every session, call, group and reward so many times over, under names of their own."""
        step = {"session": "(SELECT max(key) FROM sessions)", "seq": "(SELECT max(seq) FROM calls)"}
        width = {name: self.db.number(f"SELECT {query}") for name, query in step.items()}
        for copy in range(1, times):
            moved = {name: copy * by for name, by in width.items()}
            with self.db.transaction():
                for table, changed in _COPIED.items():
                    self._copy(table, {name: sql.format(copy=copy, **moved) for name, sql in changed.items()}, width)
            if copy % 10 == 0:
                self.ingestion._db.first("PRAGMA wal_checkpoint(TRUNCATE)")
                say(f"{copy + 1} of {times} parts")
        self.ingestion._db.first("PRAGMA wal_checkpoint(TRUNCATE)")

    def _copy(self, table: str, changed: dict[str, str], width: dict[str, int]) -> None:
        columns = [row["name"] for row in self.db.all(f'PRAGMA table_info("{table}")')]
        values = ", ".join(changed.get(name, f'"{name}"') for name in columns)
        where = _ORIGINAL[table].format(**width)
        self.db.execute(f'INSERT INTO "{table}" SELECT {values} FROM "{table}" WHERE {where}')

    def close(self) -> None:
        self.writer.close()
        self.ingestion.close()
        self.db.close()


_COPIED: dict[str, dict[str, str]] = {
    "sessions": {"key": "key + {session}", "session_id": "session_id || '/{copy}'"},
    "calls": {
        "seq": "seq + {seq}",
        "parent": "parent + {seq}",
        "session": "session + {session}",
        "id": "printf('%012x', {copy}) || substr(id, 13)",
        "response_id": "response_id || '/{copy}'",
    },
    "choices": {"call": "call + {seq}"},
    "rewards": {
        "id": "id || '/{copy}'",
        "session": "session + {session}",
        "session_id": "session_id || '/{copy}'",
    },
    "groups": {"id": "id || '/{copy}'"},
    "group_members": {"session": "session + {session}", "group": "\"group\" || '/{copy}'"},
    "outcomes": {"session": "session + {session}"},
}
_ORIGINAL = {
    "sessions": "key <= {session}",
    "calls": "seq <= {seq}",
    "choices": "call <= {seq}",
    "rewards": "session <= {session}",
    "groups": "id NOT LIKE '%/%'",
    "group_members": "session <= {session}",
    "outcomes": "session <= {session}",
}


def measure(places: dict[str, Place], rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds by what is done and where; the places in turns."""
    times: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + 1):
        for name, place in places.items():
            place.record(RECORDED)
            for what, do in (("recording", place.take_in), ("listing", place.list), ("pick-up", place.pick_up)):
                began = time.perf_counter()
                do()
                if number:  # the first is for warming up
                    times.setdefault(what, {}).setdefault(name, []).append(1000 * (time.perf_counter() - began))
    return {what: {name: statistics.median(found) for name, found in by.items()} for what, by in times.items()}


def build(folder: Path, number: int, say: Callable[[str], None]) -> Place:
    place = Place(folder)
    place.record(SMALL // TURNS)
    place.take_in()
    place.pick_up()
    # Most are trained; some were skipped, and some are open.
    for state, remainder in (("skipped", 3), ("open", 999)):
        place.db.execute("DELETE FROM outcomes WHERE session % 1000 = ?", (remainder,))
        place.db.execute("DELETE FROM group_members WHERE session % 1000 = ?", (remainder,))
        place.db.execute("UPDATE sessions SET state = ? WHERE key % 1000 = ?", (state, remainder))
    if number > SMALL:
        place.multiply(number // SMALL, say)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where the databases are made; default: the system's own")
    arguments = parser.parse_args()
    console = Console()
    sizes = {"small": SMALL, "large": SMALL * (10 if arguments.quick else 100)}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        places: dict[str, Place] = {}
        for name, number in sizes.items():
            console.print(f"making a database of {number:,} calls")
            places[name] = build(Path(folder) / name, number, lambda text: console.print(f"  {text}"))
        held = {name: place.db.number("SELECT count(*) FROM calls") for name, place in places.items()}
        sizes_mb = {name: place.db.path.stat().st_size / 1e6 for name, place in places.items()}
        found = measure(places, ROUNDS)
        wal = max(file_size(place.folder / f"{FILE}-wal") for place in places.values())
        for place in places.values():
            place.close()
    table = Table(
        "", *(f"{held[name]:,} calls ({sizes_mb[name]:,.0f} MB)" for name in sizes), "ratio", f"wanted ≤ {LIMIT}"
    )
    figures: dict[str, float] = {"calls": held["large"], "wal_mb": wal / 1e6}
    for what, by in found.items():
        ratio = by["large"] / by["small"]
        figures[f"{what.replace('-', '_')}_ratio"] = ratio
        each = {name: by[name] / (RECORDED * TURNS) if what == "recording" else by[name] for name in sizes}
        unit = "ms a call" if what == "recording" else "ms"
        shown = [f"{each[name]:.3f} {unit}" for name in sizes]
        table.add_row(what, *shown, f"{ratio:.2f}", "met" if ratio <= LIMIT else "missed")
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
