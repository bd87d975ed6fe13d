"""The open sessions that calls keep coming to: found for each call without asking the database."""

from __future__ import annotations

from storage import sessions
from storage.database import Database
from storage.types import CallStart, Identity, SessionKey, TaggedBy

_Tags = tuple[str, str | None, TaggedBy]
"""What a call says of its session: split, scenario, and where that was found."""


class OpenSessions:
    """For the one connection that opens and closes sessions; each of its transactions starts with `begin`.

    A call that says of its session what the call before said changes nothing in it while it is open. Whether another
    connection wrote meanwhile (the trainer, an administrator's hand) is asked at each `begin`; then all is forgotten.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._found: dict[Identity, tuple[_Tags, SessionKey]] = {}
        self._data_version = -1

    def begin(self) -> None:
        version = self._db.number("PRAGMA data_version")
        if version != self._data_version:
            self._found.clear()
            self._data_version = version

    def forget(self) -> None:
        """After a rollback: what was found may not be in the database."""
        self._found.clear()

    def closed(self, identity: Identity) -> None:
        self._found.pop(identity, None)

    def for_call(self, start: CallStart) -> tuple[SessionKey, bool]:
        """As `sessions.open_for_call`."""
        tags = (start.split, start.scenario, start.scenario_by)
        found = self._found.get(start.identity)
        if found is not None and found[0] == tags and not start.ambiguous:
            return found[1], False
        key, is_new = sessions.open_for_call(self._db, start)
        self._found[start.identity] = tags, key
        return key, is_new
