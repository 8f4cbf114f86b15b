"""What a connection costs: directly to the server, by the native bind and through HAProxy, in turns."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from bench.apilb.bench_host import ADDRESS, HAPROXY_PORT, NATIVE_PORT, BenchHost, cpu_s
from bench.harness import Spread, ratio
from tests.lab import cgroup
from tests.lab.netns import wait_for

PORTS = (6443, 6444, 6445)
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed with a reset, so that no port waits in TIME_WAIT
TIMEOUT_S = 60
GIGABYTE = 1_000_000_000


class Way(NamedTuple):
    """How a client gets to a server; `in_cgroup`: it is a process that the socket programs see."""

    name: str
    port: int
    in_cgroup: bool


DIRECT, SEEN, NATIVE, HAPROXY = "direct", "direct, past the socket programs", "native", "HAProxy"


def handshakes(count: int, address: str, port: int, context: ssl.SSLContext) -> float:
    """Connect and shake hands one after the other; return the median of microseconds that took."""
    took = []
    for _ in range(count):
        with socket.socket() as sock:
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            began = time.perf_counter_ns()
            sock.connect((address, port))
            with context.wrap_socket(sock):
                took.append(time.perf_counter_ns() - began)
    return statistics.median(took) / 1e3


def fetch(size: int, address: str, port: int) -> float:
    """Receive so many bytes on one connection; return Gbit/s."""
    buffer = bytearray(1 << 20)
    with socket.create_connection((address, port), TIMEOUT_S) as sock:
        sock.settimeout(None)
        began, left = time.perf_counter(), size
        sock.sendall(size.to_bytes(8, "big"))
        while left:
            got = sock.recv_into(buffer)
            if not got:
                raise ConnectionResetError("the transfer ended early")
            left -= got
        return 8 * size / (time.perf_counter() - began) / 1e9


class ThroughTraffic:
    """A host with three servers, the native bind and HAProxy before them."""

    def __init__(self) -> None:
        self.host = BenchHost()
        try:
            self._start()
        except BaseException:
            self.host.close()
            raise

    def _start(self) -> None:
        places = [f"{ADDRESS}:{port}" for port in PORTS]
        self.server = self.host.servers_process("plain_and_tls_server", places)
        self.beside = self.host.haproxy(places, check={})
        self.host.pool(
            "lb", servers=places, bind=f"127.0.0.1:{NATIVE_PORT}", check={"interval": "2s", "timeout": "2s", "fall": 3}
        )
        self.host.agent.start()
        self.host.wait_connected(["lb"])
        self.ways = (
            Way(DIRECT, PORTS[0], in_cgroup=False), Way(SEEN, PORTS[0], in_cgroup=True),
            Way(NATIVE, NATIVE_PORT, in_cgroup=True), Way(HAPROXY, HAPROXY_PORT, in_cgroup=False),
        )  # fmt: skip

    @contextlib.contextmanager
    def _on(self, way: Way) -> Iterator[str]:
        """Be a process of the host, inside the cgroup or outside; gives the address to connect to."""
        with contextlib.ExitStack() as inside:
            inside.enter_context(self.host.host.entered())
            if way.in_cgroup:
                inside.enter_context(cgroup.joined(self.host.cgroup))
            yield "127.0.0.1" if way.port in (NATIVE_PORT, HAPROXY_PORT) else ADDRESS

    def _in_turns(self, rounds: int, burst: Callable[[Way, str], float]) -> dict[str, list[float]]:
        out: dict[str, list[float]] = {way.name: [] for way in self.ways}
        for number in range(rounds + 1):  # the first one warms up
            for way in self.ways if number % 2 else reversed(self.ways):
                with self._on(way) as address:
                    value = burst(way, address)
                if number:
                    out[way.name].append(value)
        return out

    def handshakes(self, rounds: int, count: int) -> dict[str, Any]:
        """Measure connect and handshake, in microseconds."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        found = self._in_turns(rounds, lambda way, address: handshakes(count, address, way.port, context))
        return _compared(found, DIRECT)

    def bulk(self, rounds: int, size: int) -> dict[str, Any]:
        """Measure one large answer, in Gbit/s, and seconds of CPU that a gigabyte costs.

        The agent is stopped (SIGSTOP) meanwhile: it is not needed for a connection, and what it uses is nothing.
        """
        burden: dict[str, list[dict[str, float]]] = {way.name: [] for way in self.ways}

        def burst(way: Way, address: str) -> float:
            before = self._cpu()
            value = fetch(size, address, way.port)
            used = {key: (now - before[key]) * GIGABYTE / size for key, now in self._cpu().items()}
            burden[way.name].append(used)
            return value

        agent = self.host.agent.pid
        os.kill(agent, signal.SIGSTOP)
        try:
            wait_for(lambda: Path(f"/proc/{agent}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "the stop")
            out = _compared(self._in_turns(rounds, burst), DIRECT)
        finally:
            os.kill(agent, signal.SIGCONT)
        out["cpu_s"] = {
            name: {key: statistics.median(each[key] for each in used[1:]) for key in used[0]} for name, used in burden.items()
        }  # fmt: skip
        return out

    def _cpu(self) -> dict[str, float]:
        """Return the CPU time of client, server, and of the processes that may be between them."""
        ends = time.process_time() + cpu_s(self.server.pid)
        return {"ends": ends, "haproxy": cpu_s(self.beside.process.pid), "agent": cpu_s(self.host.agent.pid)}

    def close(self) -> None:
        """Take everything away."""
        self.host.close()


def _compared(values: dict[str, list[float]], base: str) -> dict[str, Any]:
    out: dict[str, Any] = {name: asdict(Spread.of(each)) for name, each in values.items()}
    out["over direct"] = {name: asdict(ratio(each, values[base])) for name, each in values.items() if name != base}
    return out
