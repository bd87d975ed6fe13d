"""What can go wrong in the storage room.

* StorageError
  * IllegalMove        a state machine was asked for a move that its table does not hold
  * NotFound           no row under that name
  * Refused            what was asked for cannot be, as things are
  * Unreadable         the database file cannot be used
    * NewerDatabase    the database was written by a newer program
  * JournalDown        the journal took no record (full disk, lost folder)
"""

from __future__ import annotations


class StorageError(Exception):
    """The base of every error of this room."""


class IllegalMove(StorageError):
    """A state may not follow another; the text names both."""


class NotFound(StorageError):
    """There is nothing under that name; the text names what was looked for."""


class Refused(StorageError):
    """What was asked for cannot be, as things are; the text says why, and what can."""


class Unreadable(StorageError):
    """The database cannot be opened: damaged, no database, or closed to this user; the text says what to do."""


class NewerDatabase(Unreadable):
    """The database holds migrations that this program does not know."""


class JournalDown(StorageError):
    """A record could not be appended; nothing of it is left in the segment."""
