"""Watches whose server dies silently, as a machine that loses its power: the time until each gets lines from a live one.

A watch is a TLS connection that gets lines continuously; its client reconnects when it ends, and not before.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.apilb.bench_host import HAPROXY_PORT, NATIVE_PORT, BenchHost, health_check
from lbagent.probes.probe_spec import ProbeSpec
from tests.lab import cgroup
from tests.lab.api_hosts import NAMES, PORT, ipv4, tls
from tests.lab.netns import LabError, wait_for

DYING = NAMES[0]
RETRY_S = 0.1
PATIENCE_S = 60.0
LOCAL_RULE = 100  # where the rule for local addresses goes: others may be before it then


class Watch(threading.Thread):
    """One watch. `server` is the one of its last line."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.server, self.reconnects = "", -1
        self.stopped = False
        self._port = port
        self._sock: ssl.SSLSocket | None = None

    def run(self) -> None:
        while not self.stopped:
            with contextlib.suppress(OSError), tls("127.0.0.1", self._port, 30) as self._sock:
                self.reconnects += 1
                self._sock.settimeout(None)
                self._sock.sendall(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
                self._read(self._sock)
            time.sleep(RETRY_S)

    def _read(self, sock: ssl.SSLSocket) -> None:
        while data := sock.recv(4096):
            line = data.rstrip(b"\n").rpartition(b"\n")[2].decode()
            if line in NAMES:
                self.server = line

    def stop(self) -> None:
        """End it."""
        self.stopped = True
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)


def _heard(watch: Watch) -> str:
    return watch.server


class DyingServer:
    """Three servers; the agent and HAProxy before them, both with onMarkedDown: reset."""

    def __init__(self, check: ProbeSpec) -> None:
        self.check, self.host = check, BenchHost()
        host = self.host
        try:
            host.serve()
            self._may_die()
            servers = [f"{ipv4(name)}:{PORT}" for name in NAMES]
            words = health_check(check)
            host.pool("lb", servers=servers, bind=f"127.0.0.1:{NATIVE_PORT}", check=words, onMarkedDown="reset")
            self.beside = host.haproxy(servers, check=words, onMarkedDown="reset")
            host.agent.start()
            host.wait_connected(["lb"])
        except BaseException:
            host.close()
            raise

    def _may_die(self) -> None:
        """Prepare the servers' machine: a rule may precede the local addresses, and apply to existing connections too."""
        space = self.host.servers
        space.sysctl("ipv4/ip_early_demux", 0)
        space.ip(f"rule add pref {LOCAL_RULE} table local", "rule del pref 0")

    @contextlib.contextmanager
    def dead(self) -> Iterator[None]:
        """Silence a server: packets to its address are dropped, and it sends none."""
        ways = [f"pref {at} {word} {ipv4(DYING)} blackhole" for at, word in enumerate(("to", "from"), start=10)]
        self.host.servers.ip(*(f"rule add {way}" for way in ways))
        try:
            yield
        finally:
            self.host.servers.ip(*(f"rule del {way}" for way in ways))

    def trial(self, port: int, count: int) -> dict[str, Any]:
        """Silence the server of so many watches by a bind; return the seconds until each has a live server."""
        inside = cgroup.joined(self.host.cgroup) if port == NATIVE_PORT else contextlib.nullcontext()
        with self.host.host.entered(), inside:  # to the end: watches open new sockets
            watches = self._watching(port, count)
            try:
                took = self._die_under(watches)
            finally:
                for watch in watches:
                    watch.stop()
        return {"watches": len(watches), "all_s": took, "reconnects": sum(each.reconnects for each in watches)}

    def _die_under(self, watches: list[Watch]) -> float:
        time.sleep(random.uniform(0, self.check.interval))
        with self.dead():
            died = time.monotonic()
            wait_for(
                lambda: all(each.server != DYING for each in watches), "all watches on a living server", PATIENCE_S
            )
            return time.monotonic() - died

    def _watching(self, port: int, count: int) -> list[Watch]:
        """Return watches of the server that will die; others are ended."""
        found: list[Watch] = []
        for _ in range(40 * count):
            watch = Watch(port)
            watch.start()
            wait_for(partial(_heard, watch), "a watch's first line", 30)
            if watch.server == DYING:
                found.append(watch)
            else:
                watch.stop()
            if len(found) == count:
                return found
        raise LabError(f"{len(found)} of {count} watches on server {DYING}")

    def measure(self, times: int, count: int) -> dict[str, list[dict[str, Any]]]:
        """Repeat this so often for each bind."""
        ways = {"native": NATIVE_PORT, "HAProxy": HAPROXY_PORT}
        out: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
        for _ in range(times):
            for name, port in ways.items():
                out[name].append(self.trial(port, count))
                self._wait_up()
        return out

    def _wait_up(self) -> None:
        """Wait until the server is up again for both."""
        self.host.wait_up("abc", 60)
        wait_for(lambda: not self.beside.heard or self.beside.heard[-1][2], "HAProxy's server", 60)

    def close(self) -> None:
        """Remove everything."""
        self.host.close()
