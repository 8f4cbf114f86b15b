"""Ports for servers that a test names before they listen.

A port from the kernel (bind to port 0, close) may be taken by the client of another process before the server listens. These are
below the range from which the kernel gives ports, and each is of one process.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

PORTS = range(22000, 26000)
GIVEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_of_process = contextlib.ExitStack()


def own_port() -> int:
    """Return a port of this network namespace that no socket has, for TCP and UDP; it stays this process's."""
    return _of_process.enter_context(free_port())


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """Yield such a port, which is this process's until the end of the block."""
    first = int(GIVEN_BY_KERNEL.read_text().split()[0])
    for port in PORTS:
        if port < first and (lock := _locked(port)):
            with lock:
                if _has_no_socket(port):
                    yield port
                    return
    raise OSError(f"no port of {PORTS} is free")


def _locked(port: int) -> socket.socket | None:
    """Take a port: an abstract socket has a name for as long as it is open, in one network namespace as ports."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0lbagent-test-port-{port}")
    except OSError:
        lock.close()
        return None
    return lock


def _has_no_socket(port: int) -> bool:
    try:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET6, kind) as probe:  # both families
                if kind == socket.SOCK_STREAM:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("::", port))
    except OSError:
        return False
    return True
