"""A TCP proxy in front of the API server that breaks connections: in the middle of an event, for a while, or silently."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from tests.lab.netns import Namespace

CHUNK = 65536
RST = struct.pack("ii", 1, 0)  # SO_LINGER: closed with a reset


class Proxy:
    """Listens on 127.0.0.1, in the namespace of `listen` or the caller's, and connects within the server's namespace.

    `connections` counts what was accepted. While `is_refusing`, connections are reset at once.
    """

    def __init__(self, server: Namespace, port: int, listen: Namespace | None = None) -> None:
        self._server, self._server_port = server, port
        make: Callable[[], socket.socket] = lambda: socket.create_server(("127.0.0.1", 0))  # noqa: E731
        self._listener = listen.call(make) if listen else make()
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.is_refusing = False
        self._flows = threading.Event()  # cleared: nothing is forwarded
        self._flows.set()
        self._deaf: set[socket.socket] = set()  # connections that forward nothing any more
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._bytes_left: int | None = None  # bytes to forward to clients until everything is reset
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    # --- faults ---

    def cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            for pair in list(self._open):
                self._reset(pair)

    def cut_after(self, count: int) -> None:
        """Reset every connection when the server has sent so many more bytes; the client gets those."""
        with self._lock:
            self._bytes_left = count

    @property
    def is_cut(self) -> bool:
        """Whether `cut_after` has happened."""
        return self._bytes_left is None

    def stall(self) -> None:
        """Forward nothing, until `flow`; new connections are accepted and hang too."""
        self._flows.clear()

    def flow(self) -> None:
        """Forward the held data, and later data."""
        self._flows.set()

    def half_open(self) -> None:
        """Forward nothing more of the open connections: as a server that vanished without closing them. New ones work."""
        with self._lock:
            self._deaf |= {each for pair in self._open for each in pair}

    def close(self) -> None:
        """End it."""
        self.flow()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    # --- forwarding ---

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._flows.wait()
        try:
            if self.is_refusing:
                raise OSError
            server = self._server.call(socket.create_connection, ("127.0.0.1", self._server_port))
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
            client.close()
            return
        pair = (client, server)
        with self._lock:
            self._open.add(pair)
        threading.Thread(target=self._pump, args=(pair, client, server), daemon=True).start()
        self._pump(pair, server, client)

    def _pump(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._flows.wait()
                if source in self._deaf:
                    continue
                data, is_last = self._allowed(data) if sink is pair[0] else (data, False)
                sink.sendall(data)
                if is_last:
                    self.cut()
                    return
        with self._lock:
            if source not in self._deaf:
                self._end(pair)

    def _allowed(self, data: bytes) -> tuple[bytes, bool]:
        with self._lock:
            if self._bytes_left is None:
                return data, False
            if len(data) < self._bytes_left:
                self._bytes_left -= len(data)
                return data, False
            data, self._bytes_left = data[: self._bytes_left], None
            return data, True

    def _reset(self, pair: tuple[socket.socket, socket.socket]) -> None:
        for each in pair:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
        self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._open.discard(pair)
        for each in pair:
            self._deaf.discard(each)
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
            each.close()
