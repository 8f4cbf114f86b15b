"""The paths from a client of the benchmark to a server, and sockets for them."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.apilb.bench_host import ADDRESS, HAPROXY_PORT, NATIVE_PORT
from tests.lab import cgroup

Address = tuple[str, int]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed with a reset, so that no port waits in TIME_WAIT
SERVERS: tuple[Address, ...] = ((ADDRESS, 6443), (ADDRESS, 6444), (ADDRESS, 6445))
DIRECT, AGAIN, SEEN, NATIVE, HAPROXY = (
    "direct",
    "direct again",
    "direct, past the socket programs",
    "native",
    "HAProxy",
)


class Way(NamedTuple):
    """A path to a server: one of `places`; `in_cgroup`: its sockets are in the cgroup of the socket programs."""

    name: str
    places: tuple[Address, ...]
    in_cgroup: bool


WAYS = (
    Way(DIRECT, SERVERS, in_cgroup=False),
    Way(SEEN, SERVERS, in_cgroup=True),
    Way(NATIVE, (("127.0.0.1", NATIVE_PORT),), in_cgroup=True),
    Way(HAPROXY, (("127.0.0.1", HAPROXY_PORT),), in_cgroup=False),
)
CONTROL = Way(AGAIN, SERVERS, in_cgroup=False)  # the difference of two equal paths


@contextlib.contextmanager
def sockets(way: Way, group: Path, count: int) -> Iterator[list[socket.socket]]:
    """Open sockets of a path, in the namespace of the calling thread.

    A socket belongs to the cgroup in which it was opened, and socket programs check that, regardless of the process that connects it.
    """
    with contextlib.ExitStack() as stack:
        with cgroup.joined(group) if way.in_cgroup else contextlib.nullcontext():
            opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in opened:
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        yield opened
