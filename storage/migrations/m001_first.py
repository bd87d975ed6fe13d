"""The first schema. Owner, session id and episode are in the identity from here on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils.db import Database

_SCHEMA = """
CREATE TABLE sessions (
  key INTEGER PRIMARY KEY,
  owner TEXT NOT NULL, session_id TEXT NOT NULL, episode INTEGER NOT NULL,
  scenario TEXT, split TEXT NOT NULL,
  state TEXT NOT NULL, closed_by TEXT, reason TEXT,
  version INTEGER NOT NULL,
  opened_at REAL NOT NULL, last_call_at REAL NOT NULL, closed_at REAL,
  calls INTEGER NOT NULL DEFAULT 0,
  UNIQUE (owner, session_id, episode)
);
CREATE INDEX sessions_by_state ON sessions (state, key);
CREATE INDEX sessions_by_scenario ON sessions (scenario, key);

CREATE TABLE calls (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  session INTEGER NOT NULL REFERENCES sessions (key),
  parent INTEGER REFERENCES calls (seq),
  agent TEXT, dialect TEXT NOT NULL, path TEXT NOT NULL, model TEXT NOT NULL, version INTEGER NOT NULL,
  upstream TEXT NOT NULL, streamed INTEGER NOT NULL,
  outcome TEXT NOT NULL, status INTEGER, error TEXT, not_trainable TEXT,
  started_at REAL NOT NULL, first_byte_at REAL, ended_at REAL NOT NULL,
  sampling TEXT, input TEXT NOT NULL, output TEXT NOT NULL, tools TEXT,
  depth INTEGER NOT NULL,
  request BLOB NOT NULL, response BLOB NOT NULL, prompt_ids BLOB
);
CREATE INDEX calls_by_session ON calls (session, seq);

CREATE TABLE choices (
  call INTEGER NOT NULL REFERENCES calls (seq), number INTEGER NOT NULL,
  finish TEXT, ids BLOB NOT NULL, logprobs BLOB NOT NULL,
  PRIMARY KEY (call, number)
) WITHOUT ROWID;

CREATE TABLE rewards (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL, session_id TEXT NOT NULL, episode INTEGER,
  session INTEGER REFERENCES sessions (key),
  name TEXT NOT NULL, source TEXT NOT NULL, value REAL NOT NULL, reason TEXT, created_at REAL NOT NULL
);
CREATE INDEX rewards_by_session ON rewards (session);
CREATE INDEX rewards_waiting ON rewards (owner, session_id) WHERE session IS NULL;

CREATE TABLE groups (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL, scenario TEXT NOT NULL, split TEXT NOT NULL,
  state TEXT NOT NULL, reason TEXT,
  created_at REAL NOT NULL, scored_at REAL,
  judge TEXT, judge_tokens INTEGER NOT NULL DEFAULT 0,
  run TEXT
);
CREATE INDEX groups_by_state ON groups (state, created_at);
CREATE INDEX groups_by_run ON groups (run);

CREATE TABLE group_members (
  session INTEGER PRIMARY KEY REFERENCES sessions (key),
  "group" TEXT NOT NULL REFERENCES groups (id),
  reward REAL, explanation TEXT
);
CREATE INDEX members_by_group ON group_members ("group");

CREATE TABLE outcomes (
  session INTEGER PRIMARY KEY REFERENCES sessions (key),
  outcome TEXT NOT NULL, reason TEXT, run TEXT, at REAL NOT NULL
);

CREATE TABLE run_requests (
  id TEXT PRIMARY KEY, scenario TEXT, settings TEXT NOT NULL, requested_at REAL NOT NULL
);

CREATE TABLE runs (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, reason TEXT, scenario TEXT,
  requested_at REAL NOT NULL, started_at REAL, ended_at REAL,
  parent INTEGER, version INTEGER UNIQUE,
  settings TEXT NOT NULL, metrics TEXT NOT NULL
);
CREATE INDEX runs_by_state ON runs (state);

CREATE TABLE run_groups (
  run TEXT NOT NULL REFERENCES runs (id), "group" TEXT NOT NULL REFERENCES groups (id),
  PRIMARY KEY (run, "group")
) WITHOUT ROWID;

CREATE TABLE versions (
  number INTEGER PRIMARY KEY, run TEXT, parent INTEGER,
  state TEXT NOT NULL, reason TEXT, path TEXT, digest TEXT,
  created_at REAL NOT NULL, verified_at REAL, live_at REAL, probe TEXT NOT NULL DEFAULT '{}'
);

CREATE TABLE loadings (
  version INTEGER NOT NULL REFERENCES versions (number), upstream TEXT NOT NULL,
  loaded_at REAL NOT NULL, probed_at REAL, verdict TEXT,
  PRIMARY KEY (version, upstream)
) WITHOUT ROWID;

CREATE TABLE journal_position (
  id INTEGER PRIMARY KEY CHECK (id = 1), segment INTEGER NOT NULL, offset INTEGER NOT NULL
);
INSERT INTO journal_position VALUES (1, 0, 0);

CREATE TABLE switches (name TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE trainer_state (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  pid INTEGER NOT NULL, heartbeat_at REAL NOT NULL, next_cycle_at REAL,
  doing TEXT NOT NULL, waits_for TEXT, problem TEXT
);
"""


def migrate(db: Database) -> None:
    for statement in _SCHEMA.split(";\n"):
        if statement.strip():
            db.execute(statement)
