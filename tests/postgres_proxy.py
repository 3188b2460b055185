"""Something between a program and its database that loses what it is told to lose."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_SOCKET = ".s.PGSQL.5432"
_COMMIT, _COMMITTED = b"COMMIT", b"COMMIT\0"
_RECORD, _RECORDED = b"INSERT INTO calls", b"INSERT 0"
"""A statement that commits by itself, and what the server answers when it has."""


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
        self._records = False
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
                for source, sink, commits, loses in (
                    (client, server, self._asks_to_commit, "commit"),
                    (server, client, self._says_committed, "answer"),
                ):
                    threading.Thread(target=self._pump, args=(source, sink, commits, loses), daemon=True).start()

    def _asks_to_commit(self, data: bytes) -> bool:
        self._records = _RECORD in data and _COMMIT not in data
        return self._records or _COMMIT in data

    def _says_committed(self, data: bytes) -> bool:
        return _COMMITTED in data or (self._records and _RECORDED in data)

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
