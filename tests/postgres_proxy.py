"""Something between a program and its database that loses what it is told to lose."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from types import TracebackType

_SOCKET = ".s.PGSQL.5432"
_TO_SERVER = b"COMMIT"
_TO_CLIENT = b"COMMIT\0"
"""What the server answers when it has committed."""


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
                for source, sink, word, loses in (
                    (client, server, _TO_SERVER, "commit"),
                    (server, client, _TO_CLIENT, "answer"),
                ):
                    threading.Thread(target=self._pump, args=(source, sink, word, loses), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, word: bytes, loses: str) -> None:
        with contextlib.suppress(OSError):  # one of them was cut
            while data := source.recv(1 << 16):
                if self._lose == loses and word in data:
                    self._lose = None
                    self.lost += 1
                    self.cut()
                    return
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
