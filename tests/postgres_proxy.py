"""Something between a program and its database that loses what it is told to lose."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_SOCKET = ".s.PGSQL.5432"
_BEGIN, _COMMIT, _COMMITTED = b"BEGIN", b"COMMIT", b"COMMIT\0"
_ALONE, _AHEAD, _WRITTEN = b"WITH marked AS", b"\0stepwell_record\0", b"INSERT 0"
"""Statements that commit by themselves, the second one prepared, and what the server answers when they have."""
_PREPARING = re.compile(rb"(_pg3_\d+)\0\s*" + _ALONE)


class _Session:
    """What passes over one connection: which of it asks to commit, and which says that this has been done?"""

    def __init__(self) -> None:
        self._prepared: set[bytes] = set()
        self._is_alone = False

    def asks_to_commit(self, data: bytes) -> bool:
        if found := _PREPARING.search(data):
            self._prepared.add(found[1])
            return False
        names = (_AHEAD, *(b"\0" + name + b"\0" for name in self._prepared))
        asks = _ALONE in data or any(name in data for name in names)
        # A long one comes in several pieces, and is to be remembered over all of them.
        self._is_alone = asks or (self._is_alone and _BEGIN not in data)
        return asks or _COMMIT in data

    def says_committed(self, data: bytes) -> bool:
        return _COMMITTED in data or (self._is_alone and _WRITTEN in data)


class Proxy:
    """A Unix socket that leads to a server's. It can cut all connections, at once or in the middle of a commit."""

    def __init__(self, server_dsn: str) -> None:
        self._server = str(Path(server_dsn.rpartition("host=")[2], _SOCKET))
        self._folder = tempfile.mkdtemp(prefix="stepwell-proxy-")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self._folder, _SOCKET)))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._lose: str | None = None
        self._refuses = False
        self.dsn = f"postgresql://postgres@/postgres?host={self._folder}"
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
        self._listener.close()
        self.cut()
        shutil.rmtree(self._folder, ignore_errors=True)

    def lose_next(self, what: str) -> None:
        """Cut everything at the next commit: before the server gets it (`commit`), or after (`answer`)."""
        self._lose = what

    def refuse(self, *, refuses: bool = True) -> None:
        """Cut everything and let nobody in, or let everybody in again."""
        self._refuses = refuses
        if refuses:
            self.cut()

    def cut(self) -> None:
        with self._lock:
            connections, self._open = self._open, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    client.close()
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                with self._lock:
                    self._open += [client, server]
                session = _Session()
                for source, sink, commits, loses in (
                    (client, server, session.asks_to_commit, "commit"),
                    (server, client, session.says_committed, "answer"),
                ):
                    threading.Thread(target=self._pump, args=(source, sink, commits, loses), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, commits: Callable[[bytes], bool], loses: str) -> None:
        with contextlib.suppress(OSError):  # one of them was cut
            while data := source.recv(1 << 16):
                if commits(data) and self._lose == loses:
                    self._lose = None
                    self.lost += 1
                    self.cut()
                    return
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
