"""Reading connections, lent out for one query at a time.

Threads that read wait neither for the writer nor for each other, so that a long scan for one client delays
no other. Which queries there are is not known here.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perilogd.journal.errors import closed, explain
from perilogd.journal.schema import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Readers:
    """As many connections as threads ever read at once.

    Args:
        path: the journal, which its writer has prepared.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def read(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run one query to its end, since a reader that lingers keeps SQLite from recycling its log.

        Raises:
            JournalError: it could not be run.
        """
        try:
            with self.lend() as reader:
                return reader.execute(sql, values).fetchall()
        except OverflowError:
            return []  # msgpack knows larger numbers than SQLite: no row has such a one
        except sqlite3.Error as error:
            raise explain(error, self._path, "read") from error

    @contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        """Lend out a connection for the time of a block: an idle one, or a new one when all are in use."""
        with self._lock:
            if self._closed:
                raise closed(self._path, "read")
            reader = self._idle.pop() if self._idle else connect(self._path, read_only=True)
        try:
            yield reader
        finally:
            with self._lock:
                if self._closed:
                    reader.close()
                else:
                    self._idle.append(reader)

    def close(self) -> None:
        """Close the connections; one that is lent out is closed when it comes back."""
        with self._lock:
            self._closed = True
            for reader in self._idle:
                reader.close()
            self._idle.clear()
