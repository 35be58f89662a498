"""The journal: everything that perilogd remembers, in one SQLite file.

Only the public names live here. What the rows mean is not known in this package: an event's context
is bytes to it, and which event may follow which is the lifecycle's business.
"""

from perilogd.journal.errors import JournalError, JournalFull
from perilogd.journal.lock import StateLock
from perilogd.journal.model import Batch, DrainRow, Entry, NewJob, Output, Run, decode
from perilogd.journal.store import Journal

__all__ = [
    "Batch",
    "DrainRow",
    "Entry",
    "Journal",
    "JournalError",
    "JournalFull",
    "NewJob",
    "Output",
    "Run",
    "StateLock",
    "decode",
]
