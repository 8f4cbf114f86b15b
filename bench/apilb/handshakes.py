"""The time of connect and TLS handshake by each path: one process for all paths, which take turns after each handshake.

Code, allocator, caches and certificate are the same for all paths, and only the path of a socket differs. Client and server are on
one CPU: one of them works while the other waits, so the figures do not include the wake-up of another CPU.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import ssl
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.apilb.ways import Address, Way, sockets
from bench.harness import pinned


@contextlib.contextmanager
def on_one_cpu(pid: int) -> Iterator[None]:
    """Pin this thread and a process, with the threads that it starts in the block, to one CPU."""
    before = os.sched_getaffinity(pid)
    with pinned():
        try:
            _move(pid, os.sched_getaffinity(0))
            yield
        finally:
            _move(pid, before)


def _move(pid: int, cpus: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it served a connection that has ended
            os.sched_setaffinity(int(thread.name), cpus)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def handshake_ns(sock: socket.socket, to: Address, context: ssl.SSLContext) -> int:
    """Connect and shake hands; return the time of both. Then the server answers a request, so that it is idle again."""
    began = time.perf_counter_ns()
    sock.connect(to)
    with context.wrap_socket(sock) as wrapped:
        took = time.perf_counter_ns() - began
        wrapped.sendall(b"x")
        wrapped.recv(1)
    return took


def one_round(ways: Sequence[Way], group: Path, count: int, context: ssl.SSLContext) -> dict[str, float]:
    """Shake hands so often by each path, in random order each time; return the medians in microseconds."""
    took: dict[str, list[int]] = {way.name: [] for way in ways}
    with contextlib.ExitStack() as stack:
        opened = {way.name: stack.enter_context(sockets(way, group, count)) for way in ways}
        stack.enter_context(_no_collection())
        for number in range(count):
            for way in random.sample(ways, len(ways)):
                took[way.name].append(handshake_ns(opened[way.name][number], random.choice(way.places), context))
    return {name: statistics.median(each) / 1e3 for name, each in took.items()}


def measure(ways: Sequence[Way], group: Path, rounds: int, count: int) -> dict[str, list[float]]:
    """Return the results by round and path; the first round warms up. Sessions are not resumed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    found = [one_round(ways, group, count, context) for _ in range(rounds + 1)][1:]
    return {way.name: [each[way.name] for each in found] for way in ways}
