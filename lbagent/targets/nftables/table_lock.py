"""One agent on one table: a name that one socket of the network namespace can have. It ends with the process, however that dies."""

from __future__ import annotations

import errno
import socket
import struct

from lbagent.errors import Conflict


class TableLock:
    """Held from `take` until `release` or the end of the process."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._name = f"\0lbagent-nftables-{table}"  # abstract: of the network namespace, as the table is
        self._socket: socket.socket | None = None

    def take(self) -> None:
        """Take the lock. Raises Conflict naming the pid of the agent that has it."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.bind(self._name)
            sock.listen(1)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
            pid = self._holder()
            who = f"pid {pid}" if pid else "another process"
            raise Conflict(
                f"an agent already serves with table inet {self._table} ({who}); nothing was changed; stop it, or name another"
                " table: --renderer nftables=table=NAME"
            ) from None
        self._socket = sock

    def _holder(self) -> int:
        """Return the pid of the process that has the name; 0: not known."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
            try:
                asking.settimeout(1.0)
                asking.connect(self._name)
                credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            except OSError:
                return 0
        return int(struct.unpack("=iII", credentials)[0])

    def release(self) -> None:
        """Let go."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
