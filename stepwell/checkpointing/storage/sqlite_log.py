"""Room for the write-ahead log, made before it is needed.

A commit waits until its pages are on the disk. As long as the log grows, the file system has to note in its own journal
where each new piece of it lies, and a commit takes about twice as long as one into a log that is used again. So a
connection that goes on writing has the log lengthened ahead of it with zeros, which SQLite takes for the end of what
was written.
"""

from __future__ import annotations

import logging
import os
import sqlite3

logger = logging.getLogger(__name__)

LOG_PAGES = 1000
"""Pages after which they are copied into the database: a log that is soon used again beats one that grows."""

_FRAME = 24 + 4096

_ROOM = {8: LOG_PAGES // 4 * _FRAME, 32: LOG_PAGES * _FRAME}
"""By the number of a connection's commit: one that makes only a few, to resume or to answer, need not pay for it."""

_PIECE = bytes(256 * 1024)

_TIMES_FREE = 16
"""So many times the room that is made has to be free: on a disk that is nearly full there are better uses for it."""


def make_room(connection: sqlite3.Connection, commits: int) -> None:
    """Lengthen the log if it is time, as this commit of the connection begins.

    Within its write transaction, because nobody else may write to the log then. It only saves time: if it can't be
    done, everything goes on as it would have.
    """
    length = _ROOM.get(commits)
    if length is None:
        return
    assert connection.in_transaction
    ((_, _, database),) = connection.execute("PRAGMA database_list").fetchall()
    try:
        # SQLite has its locks on other files, so closing this descriptor drops none of them.
        descriptor = os.open(f"{database}-wal", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _lengthen(descriptor, length)
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.debug("no room was made for the log of %s: %s", database, error)


def _lengthen(descriptor: int, end: int) -> None:
    begin, system = os.fstat(descriptor).st_size, os.fstatvfs(descriptor)
    if system.f_bavail * system.f_frsize < _TIMES_FREE * (end - begin):
        return
    try:
        while (place := os.fstat(descriptor).st_size) < end:
            os.pwrite(descriptor, _PIECE[: end - place], place)
    except OSError:
        os.ftruncate(descriptor, begin)
        raise
