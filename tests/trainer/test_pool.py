"""A turn that looks at what is new forms the groups that a look at everything would, and costs what is new."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from storage import calls, rewards, runs, sessions
from storage.database import Database
from storage.journal import Kind as Record
from storage.records import Close, pack_close
from storage.states import CallOutcome, ClosedBy
from storage.types import SessionKey, new_id
from tests.storage.recorded import a_reward, call_start, capture, identity
from tests.trainer.workshop import Workshop
from trainer.groups import Candidate, Rules
from trainer.pool import Pool
from trainer.settings import TrainerSettings
from trainer.sieve import crash

HOUR = 3600.0
START = 2_000_000_000.0


def by_looking_at_all(
    db: Database, limits: TrainerSettings, now: float, asked: set[str | None]
) -> tuple[list[list[SessionKey]], set[SessionKey]]:
    """The groups that are to be formed, in their order, and the sessions that end without one."""
    rules = Rules(limits.group, limits.max_staleness)
    usable, ended = [], set()
    for session in sessions.waiting(db):
        behind = sessions.steps_behind(db, session.key)
        crashed = crash(calls.of_session(db, session.key)) and not rewards.of_session(db, session.key)
        assert session.closed_at is not None
        if behind > limits.max_staleness or (crashed and now - session.closed_at >= limits.reward.wait):
            ended.add(session.key)
        elif not crashed:
            usable.append(Candidate(session, behind))
    chosen = [[member.key for member in group] for group in rules.choose(usable, now, asked=asked)]
    taken = {key for group in chosen for key in group}
    ended |= {one.session.key for one in usable if one.session.key not in taken and rules.is_lonely(one.session, now)}
    return chosen, ended


class History(RuleBasedStateMachine):
    """Sessions close, open again, crash and are rewarded; time passes, versions come and go, the trainer restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.names: list[tuple[str, str]] = []
        self.begun = False

    @initialize(
        size=st.integers(2, 4),
        min_size=st.integers(2, 4),
        max_wait=st.sampled_from([HOUR, 30 * HOUR]),
        wait=st.sampled_from([0.0, 10.0, 2 * HOUR]),
        max_staleness=st.integers(1, 2),
    )
    def begin(self, size: int, min_size: int, max_wait: float, wait: float, max_staleness: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.workshop = Workshop(Path(self.folder.name), "http://vllm")
        self.limits = self.workshop.settings(
            group={"size": size, "min_size": min_size, "max_wait": max_wait},
            reward={"wait": wait},
            max_staleness=max_staleness,
        )
        self.pool = Pool(self.workshop.db, self.limits)
        self.begun = True

    def teardown(self) -> None:
        if self.begun:
            self.workshop.abandon()
            self.folder.cleanup()

    def call(
        self, name: str, owner: str, scenario: str, split: str, outcome: CallOutcome = CallOutcome.COMPLETE
    ) -> None:
        start = call_start(
            name, identity=identity(name, owner), scenario=scenario, split=split, started_at=self.now,
            version=runs.newest_version(self.workshop.db),
        )  # fmt: skip
        self.workshop.begin(start, [{"role": "user", "content": name}])
        if outcome is CallOutcome.COMPLETE:
            self.workshop.piece(start, b"[]")
            self.workshop.captured(start, capture([1, 2], [3]))
        self.workshop.finish(start, outcome)

    def close(self, name: str, owner: str, by: ClosedBy) -> None:
        record = pack_close(Close(identity(name, owner), by, self.now))
        self.workshop.writer.append((Record.CLOSE, new_id(), record))
        self.workshop.take_in()

    @rule(
        owner=st.sampled_from(["one", "two"]),
        scenario=st.sampled_from(["a", "b"]),
        split=st.sampled_from(["train", "train", "eval"]),
        many=st.integers(1, 3),
        crashes=st.sampled_from([False, False, True]),
        by=st.sampled_from(ClosedBy),
    )
    def sessions_close(self, owner: str, scenario: str, split: str, many: int, crashes: bool, by: ClosedBy) -> None:
        for _ in range(many):
            name = f"s{len(self.names)}"
            self.names.append((name, owner))
            self.call(name, owner, scenario, split)
            if crashes:
                self.call(name, owner, scenario, split, CallOutcome.CLIENT_GONE)
            self.close(name, owner, by)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), split=st.sampled_from(["train", "eval"]), closes=st.booleans())
    def a_call_comes_late(self, data: st.DataObject, split: str, closes: bool) -> None:
        name, owner = data.draw(st.sampled_from(self.names))
        self.now += 1.0
        self.call(name, owner, "a", split)
        self.workshop.take_in()
        if closes:
            self.close(name, owner, ClosedBy.IDLE)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def a_reward_comes(self, data: st.DataObject) -> None:
        name, owner = data.draw(st.sampled_from(self.names))
        self.workshop.reward(a_reward(name, 1.0, identity=identity(name, owner)))
        self.workshop.take_in()

    @rule(seconds=st.sampled_from([1.0, 10.0, HOUR, 2 * HOUR, 24 * HOUR, 31 * HOUR]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(from_parent=st.booleans())
    def a_version_comes(self, from_parent: bool) -> None:
        db = self.workshop.db
        number = db.number("SELECT max(version) FROM runs") + 1
        parent = runs.newest_version(db, None if from_parent else runs.newest_version(db))
        db.insert(
            "runs", id=f"run {number}", kind="train", state="succeeded", requested_at=0.0, ended_at=0.0,
            parent=parent, version=number, settings="{}", metrics="{}",
        )  # fmt: skip
        db.insert("versions", number=number, run=f"run {number}", parent=parent, state="live", created_at=0.0)

    @rule()
    def the_newest_version_is_rejected(self) -> None:
        newest = runs.newest_version(self.workshop.db)
        self.workshop.db.execute("UPDATE versions SET state = 'rejected' WHERE number = ?", (newest,))

    @rule()
    def a_group_is_given_back(self) -> None:
        """As where one is deleted: its members wait again."""
        self.workshop.db.execute(
            'DELETE FROM group_members WHERE "group" = (SELECT id FROM groups ORDER BY rowid DESC LIMIT 1)'
        )

    @rule()
    def the_trainer_restarts(self) -> None:
        self.pool = Pool(self.workshop.db, self.limits)

    @rule(asked=st.sampled_from([(), (), (), ("a",), ("b", "a"), (None,)]))
    def a_turn(self, asked: tuple[str | None, ...]) -> None:
        db = self.workshop.db
        expected, ended = by_looking_at_all(db, self.limits, self.now, set(asked))
        last = db.number("SELECT max(rowid) FROM groups")
        outcomes = {row["session"] for row in db.all("SELECT session FROM outcomes")}
        was_due = self.pool.is_due(db)
        self.pool.form(self.now, asked=asked)
        formed = [
            [row["session"] for row in db.all(
                'SELECT session FROM group_members WHERE "group" = ? ORDER BY rowid', (one["id"],)
            )]
            for one in db.all("SELECT id FROM groups WHERE rowid > ? ORDER BY rowid", (last,))
        ]  # fmt: skip
        assert formed == [sorted(group) for group in expected]
        assert {row["session"] for row in db.all("SELECT session FROM outcomes")} - outcomes == ended
        if formed and not asked and any(len(group) == self.limits.group.size for group in formed):
            assert was_due, "nobody would have turned the cycle"


History.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
test_any_history = History.TestCase
