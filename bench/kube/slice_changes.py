"""Single changes: one EndpointSlice patched, until it is in the kernel, one after the other.

One thread waits for the answer to the PATCH, the event on its own watch (which the agent's watch gets at the same time), and the
kernel. So their order is kept, and the time between the event and the map is the agent's own share.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Protocol

from bench.control import percentile
from bench.kube.bulk_objects import ENDPOINTS, SLICES, endpoint_address, endpoints, vip
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import LB4_KEY, LB_SERVICE
from tests.kube_api.control_plane import MERGE, PORT, ControlPlane

SINGLE = 50  # Services that change, in turns
STEP_S = 0.0002  # between two reads of a map
LATE_S = 120.0


class Kernel(Protocol):
    """The place where a change arrives."""

    def arm(self, name: str, count: int) -> None:
        """Expect that a Service has so many endpoints."""

    def poll(self) -> bool:
        """Whether it has them now."""


class ServiceMap:
    """The agent's service map."""

    def __init__(self, maps: KernelMaps) -> None:
        """Take the open maps."""
        self._maps, self._key, self._count = maps, b"", 0

    def arm(self, name: str, count: int) -> None:
        """Expect that a numbered Service has so many endpoints at its first port."""
        address = bytes(map(int, vip(int(name[1:])).split(".")))
        self._key, self._count = LB4_KEY.pack(address, (80).to_bytes(2, "big"), 0, 6, 0, b"\0\0"), count

    def poll(self) -> bool:
        """Whether it has them."""
        return self.count() == self._count

    def count(self) -> int:
        """Return how many it has."""
        value = self._maps.get("lb4_service", self._key)
        return LB_SERVICE.unpack(value)[1] if value else -1


def connected(plane: ControlPlane) -> http.client.HTTPSConnection:
    """Connect to the API server from within its namespace."""
    context = ssl.create_default_context(cafile=plane.certificate)
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=context, timeout=LATE_S)
    plane.namespace.call(connection.connect)
    return connection


class Watch:
    """A non-blocking watch of the EndpointSlices, of all or of one by name."""

    def __init__(self, plane: ControlPlane, only: str = "") -> None:
        """Start now."""
        version = plane.ask("GET", f"{SLICES}?limit=1")["metadata"]["resourceVersion"]
        query = f"?watch=true&resourceVersion={version}" + (f"&fieldSelector=metadata.name={only}" if only else "")
        self._connection = connected(plane)
        self._connection.request("GET", SLICES + query, headers={"Authorization": f"Bearer {plane._admin}"})
        self._answer = b""
        self._socket: socket.socket = self._connection.sock
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def read(self) -> bytes:
        """Return all since `forget`, with the marks of chunks."""
        try:
            while data := self._socket.recv(1 << 16):
                self._answer += data
        except ssl.SSLWantReadError:
            return self._answer
        raise RuntimeError("the API server ended the watch")

    def has(self, word: bytes) -> bool:
        """Whether this came since `forget`."""
        return word in self.read()

    def forget(self) -> None:
        """Drop the received data."""
        self.read()
        self._answer = b""

    def close(self) -> None:
        """End it."""
        self._connection.close()


@dataclass(frozen=True)
class Change:
    """Milliseconds of one change. `accepted`, `told`: from the server's answer, from the event of another watch, to the kernel."""

    sent_ms: float
    accepted_ms: float
    told_ms: float


class SliceChanges:
    """PATCHes on one connection to the API server, and a watch on another."""

    def __init__(self, plane: ControlPlane, services: int = SINGLE, endpoints: int = ENDPOINTS) -> None:
        """Take the server; so many Services with so many endpoints change."""
        self._plane, self._services, self._endpoints = plane, services, endpoints
        self._headers = {"Authorization": f"Bearer {plane._admin}"}
        self._round = 0

    def make(self, kernel: Kernel, count: int, pause_s: float = 0.02) -> list[Change]:
        """Make changes, each when the previous one is in the kernel and a pause is over."""
        self._patches, self._watch = connected(self._plane), Watch(self._plane)
        out = []
        try:
            for _ in range(count):
                out.append(self._one(kernel))
                time.sleep(pause_s)
        finally:
            self._patches.close()
            self._watch.close()
        return out

    def next_change(self) -> tuple[str, int]:
        """Return the Service that changes next, and how many endpoints it has then: one fewer in one turn, all in the next."""
        turn, number = divmod(self._round, self._services)
        self._round += 1
        return f"s{number}", self._endpoints - 1 + turn % 2

    def _one(self, kernel: Kernel) -> Change:
        name, left = self.next_change()
        addresses = [endpoint_address(int(name[1:]), n) for n in range(left)]
        kernel.arm(name, left)
        self._watch.forget()
        sent = time.perf_counter()
        body = json.dumps({"endpoints": endpoints(name, addresses)})
        self._patches.request("PATCH", f"{SLICES}/{name}-a", body, {**self._headers, "Content-Type": MERGE})
        accepted, told, seen = self._times(kernel, f'"{name}-a"'.encode())
        answer = self._patches.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"PATCH {name}: {answer.status} {text[:300]!r}")
        return Change((seen - sent) * 1e3, (seen - accepted) * 1e3, (seen - told) * 1e3)

    def _times(self, kernel: Kernel, name: bytes) -> tuple[float, float, float]:
        """Return when the server answered, when the watch got the event, and when the kernel had the change."""
        accepted = told = seen = 0.0
        late = time.perf_counter() + LATE_S
        while not (accepted and told and seen):
            waiting = [*([] if accepted else [self._patches.sock]), *([] if told else [self._watch])]
            ready = select.select(waiting, [], [], STEP_S)[0]
            now = time.perf_counter()
            if self._patches.sock in ready:
                accepted = now
            if self._watch in ready and self._watch.has(name):
                told = now
            if not seen and kernel.poll():
                seen = time.perf_counter()
            if now > late:
                raise RuntimeError(f"{name!r}: not within {LATE_S:g} s: {accepted=}, {told=}, {seen=}")
        return accepted, told, seen


def summary(changes: list[Change]) -> dict[str, float]:
    """Return percentiles in milliseconds. A change that was in the kernel before the answer counts as 0."""
    accepted = [max(0.0, change.accepted_ms) for change in changes]
    told = [max(0.0, change.told_ms) for change in changes]
    return {
        "n": len(changes), "p50": percentile(accepted, 50), "p99": percentile(accepted, 99),
        "sent_p50": percentile([change.sent_ms for change in changes], 50),
        "own_p50": percentile(told, 50), "own_p99": percentile(told, 99),
    }  # fmt: skip
