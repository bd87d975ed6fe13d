"""Numbered, append-only changes of the schema, each recorded in the transaction that makes it."""

from __future__ import annotations

from sqlite_utils.migrations import Migrations

from storage.migrations import m001_first, m002_tags, m003_responses, m004_many_calls, m005_keys

migrations = Migrations("slipstream")
migrations(name="001_first")(m001_first.migrate)
migrations(name="002_tags")(m002_tags.migrate)
migrations(name="003_responses")(m003_responses.migrate)
migrations(name="004_many_calls")(m004_many_calls.migrate)
migrations(name="005_keys")(m005_keys.migrate)

__all__ = ["migrations"]
