"""The cost of a connection: directly to the server, by the native bind and through HAProxy, in turns."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.apilb import handshakes
from bench.apilb.bench_host import NATIVE_PORT, BenchHost, cpu_s
from bench.apilb.ways import CONTROL, DIRECT, SERVERS, WAYS, sockets
from bench.harness import Spread, ratio
from tests.lab.netns import wait_for

GIGABYTE = 1_000_000_000
PIECES = 50  # of a large answer, some milliseconds each
ALL = (*WAYS, CONTROL)
USERS = ("ends", "haproxy", "agent")  # of CPU: client and server, and the processes between them


def fetch_s(size: int, sock: socket.socket, buffer: bytearray) -> float:
    """Request so many bytes on a connection; return the seconds until all have arrived."""
    began, left = time.perf_counter(), size
    sock.sendall(size.to_bytes(8, "big"))
    while left:
        got = sock.recv_into(buffer, min(left, len(buffer)))
        if not got:
            raise ConnectionResetError("the transfer ended early")
        left -= got
    return time.perf_counter() - began


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
        places = [f"{address}:{port}" for address, port in SERVERS]
        self.server = self.host.servers_process("plain_and_tls_server", places)
        self.beside = self.host.haproxy(places, check={})
        self.host.pool(
            "lb", servers=places, bind=f"127.0.0.1:{NATIVE_PORT}", check={"interval": "2s", "timeout": "2s", "fall": 3}
        )
        self.host.agent.start()
        self.host.wait_connected(["lb"])

    def handshakes(self, rounds: int, count: int) -> dict[str, Any]:
        """Measure connect and handshake, in microseconds."""
        with self.host.host.entered(), handshakes.on_one_cpu(self.server.pid):
            found = handshakes.measure(ALL, self.host.cgroup, rounds, count)
        return _compared(found, DIRECT)

    def bulk(self, rounds: int, size: int) -> dict[str, Any]:
        """Measure one large answer, in Gbit/s, and seconds of CPU that a gigabyte costs.

        The agent is stopped (SIGSTOP) during the measurement: a connection does not need it, and it uses no CPU.
        """
        agent = self.host.agent.pid
        os.kill(agent, signal.SIGSTOP)
        try:
            wait_for(lambda: Path(f"/proc/{agent}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "the stop")
            found = [self._large_answers(size) for _ in range(rounds + 1)][1:]  # the first one warms up
        finally:
            os.kill(agent, signal.SIGCONT)
        names = [way.name for way in ALL]
        gbit = {name: [8 * size / each[name]["seconds"] / 1e9 for each in found] for name in names}
        cpu = {
            name: {key: statistics.median(each[name][key] for each in found) * GIGABYTE / size for key in USERS}
            for name in names
        }
        return _compared(gbit, DIRECT) | {"cpu_s": cpu}

    def _large_answers(self, size: int) -> dict[str, dict[str, float]]:
        """Fetch so much by each path on one connection, piece by piece in turns; return seconds, and seconds of CPU."""
        out = {way.name: dict.fromkeys(("seconds", *USERS), 0.0) for way in ALL}
        buffer = bytearray(1 << 20)
        with self.host.host.entered(), contextlib.ExitStack() as stack:
            opened = {}
            for way in ALL:
                (opened[way.name],) = stack.enter_context(sockets(way, self.host.cgroup, 1))
                opened[way.name].connect(way.places[0])
            for _ in range(PIECES):
                for way in random.sample(ALL, len(ALL)):
                    before, found = self._cpu(), out[way.name]
                    found["seconds"] += fetch_s(size // PIECES, opened[way.name], buffer)
                    for key, now in self._cpu().items():
                        found[key] += now - before[key]
        return out

    def _cpu(self) -> dict[str, float]:
        """Return the CPU time of client, server, and of the processes that may be between them."""
        ends = time.process_time() + cpu_s(self.server.pid)
        return dict(zip(USERS, (ends, cpu_s(self.beside.process.pid), cpu_s(self.host.agent.pid)), strict=True))

    def close(self) -> None:
        """Remove everything."""
        self.host.close()


def _compared(values: dict[str, list[float]], base: str) -> dict[str, Any]:
    out: dict[str, Any] = {name: asdict(Spread.of(each)) for name, each in values.items()}
    out["over direct"] = {name: asdict(ratio(each, values[base])) for name, each in values.items() if name != base}
    return out
