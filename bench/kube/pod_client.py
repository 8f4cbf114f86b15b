"""The measurements of a client in a pod: time of a connect, requests, bytes per second. Paths take turns, burst by burst."""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import time
from collections.abc import Callable, Mapping

from tests.lab.netns import Namespace

REQUEST = b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed with a reset, so that no port waits in TIME_WAIT
BLOCK = bytes(1 << 20)
TIMEOUT_S = 10
Address = tuple[str, int]
Burst = Callable[[Address], float]


def opened() -> socket.socket:
    """Return an unconnected socket."""
    sock = socket.socket()
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return sock


def connect_us(to: Address, count: int = 100) -> float:
    """Connect in sequence; return the median time of a connect in microseconds."""
    took = []
    for _ in range(count):
        with opened() as sock:
            began = time.perf_counter_ns()
            sock.connect(to)
            took.append(time.perf_counter_ns() - began)
    return statistics.median(took) / 1e3


def requests_per_s(to: Address, seconds: float = 0.1) -> float:
    """Make requests, each on a new connection; return their number per second."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        count += 1
        with opened() as sock:
            sock.connect(to)
            sock.sendall(REQUEST)
            while sock.recv(4096):
                pass
    return count / (time.perf_counter() - began)


def gbit_per_s(to: Address, seconds: float = 0.25) -> float:
    """Send on one connection; return Gbit/s that arrived."""
    with socket.create_connection(to, TIMEOUT_S) as sock:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            sock.sendall(BLOCK)
        sock.shutdown(socket.SHUT_WR)
        arrived = sock.recv(8)
        took = time.perf_counter() - began
    return int.from_bytes(arrived, "big") * 8 / took / 1e9


def in_turns(burst: Burst, paths: Mapping[str, tuple[Namespace, Address]], rounds: int) -> dict[str, list[float]]:
    """Measure each path once per round, in changing order; the first round warms up."""
    out: dict[str, list[float]] = {name: [] for name in paths}
    for number in range(rounds + 1):
        for name in list(paths) if number % 2 else reversed(paths):
            space, to = paths[name]
            with space.entered():
                value = burst(to)
            if number:
                out[name].append(value)
    return out


def answers(space: Namespace, to: Address) -> bool:
    """Whether a request is answered now."""
    with space.entered(), contextlib.suppress(OSError), socket.create_connection(to, 1) as sock:
        sock.sendall(REQUEST)
        return bool(sock.recv(4096))
    return False
