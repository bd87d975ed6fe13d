"""Numbered, append-only changes of the schema, each recorded in the transaction that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from storage.migrations import (
    m001_first,
    m002_tags,
    m003_responses,
    m004_many_calls,
    m005_keys,
    m006_token_limit,
    m007_drift,
    m008_judge_seed,
    m009_judge_cut,
    m010_blame,
    m011_judging,
    m012_sampled_by,
    m013_replay,
)

if TYPE_CHECKING:
    from sqlite_utils.db import Database

NAME = "slipstream"
TABLE = "_sqlite_migrations"
"""Where the library records what has been applied, by the name of the set."""

ALL: dict[str, Callable[[Database], None]] = {
    "001_first": m001_first.migrate,
    "002_tags": m002_tags.migrate,
    "003_responses": m003_responses.migrate,
    "004_many_calls": m004_many_calls.migrate,
    "005_keys": m005_keys.migrate,
    "006_token_limit": m006_token_limit.migrate,
    "007_drift": m007_drift.migrate,
    "008_judge_seed": m008_judge_seed.migrate,
    "009_judge_cut": m009_judge_cut.migrate,
    "010_blame": m010_blame.migrate,
    "011_judging": m011_judging.migrate,
    "012_sampled_by": m012_sampled_by.migrate,
    "013_replay": m013_replay.migrate,
}


def apply(connection: Any, stop_before: str | None = None) -> None:
    """Make the changes that ``connection``'s database lacks."""
    # Importing it takes a second, with pandas beside it three: only a database that lacks something is worth that.
    import sqlite_utils
    from sqlite_utils.migrations import Migrations

    migrations = Migrations(NAME)
    for name, migrate in ALL.items():
        migrations(name=name)(migrate)
    migrations.apply(sqlite_utils.Database(connection), stop_before=stop_before)
