"""Gaps: how long an outside client gets no answer when the announcer of an address dies, or is stopped."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from bench.cloud import wire
from bench.cloud.asking import Asker, failing_s, longest_gap_s
from bench.cloud.stage import SERVICES, Lan, service
from tests.lab.netns import wait_for

BEFORE_S, AFTER_S = 0.5, 1.5  # requests before the event, and after another node answers
PHASE_S = 1.0  # random wait before the event: Leases and hellos are periodic
WITHIN_S = 90.0
NAME = "web"
Say = Callable[[str], object]


class System(Protocol):
    """A system that announces addresses on a LAN. `joins_s`: until the others see a node that returns."""

    name: str
    joins_s: float
    lan: Lan

    def start(self) -> None:
        """Start it."""

    def kill(self, name: str) -> None:
        """Kill the announcer of a node."""

    def stop(self, name: str) -> None:
        """Stop it with SIGTERM."""

    def start_node(self, name: str) -> None:
        """Restart it."""

    def power_off(self, name: str) -> None:
        """Make a node fail silently."""

    def power_on(self, name: str) -> None:
        """Boot it."""


class Gaps:
    """The gaps of one system. Every method is one trial, and returns {"gap_s", "failures", "syns_again"}."""

    def __init__(self, system: System) -> None:
        """Create a Service, and wait until its address answers."""
        self.system, self.lan = system, system.lan
        self.lan.plane.ask("POST", SERVICES, service(NAME))
        self.lan.add_backends(NAME)
        self.address = wait_for(self._address, "an address", WITHIN_S)
        self.leader()

    def close(self) -> None:
        """Delete the Service, for the next one with its name."""
        self.lan.plane.send("DELETE", f"{SERVICES}/{NAME}")
        self.lan.remove_backends(NAME)

    def _address(self) -> str:
        ingress = self.lan.plane.ask("GET", f"{SERVICES}/{NAME}")["status"]["loadBalancer"].get("ingress", [])
        return str(ingress[0]["ip"]) if ingress else ""

    def leader(self, **more: Any) -> str:
        """Return the one node that answers."""
        return wire.leader(self.lan, self.address, **more)

    def _asked(self, happens: Callable[[], object]) -> tuple[Asker, float]:
        """Send requests during an event; return the client, and the start of the event."""
        self.lan.client.ip("neigh flush dev eth0")  # the cache may have another node, which would keep answering
        with Asker(self.lan.client, self.address) as asker:
            time.sleep(BEFORE_S + random.uniform(0.0, PHASE_S))
            began = time.monotonic()
            happens()
            time.sleep(AFTER_S)
        return asker, began

    def _result(self, asker: Asker, began: float) -> dict[str, float]:
        gap = longest_gap_s(asker.asks, began - BEFORE_S / 2)
        return {"gap_s": gap, "failures": asker.failures, "syns_again": asker.syns_again}

    def _joined(self) -> None:
        time.sleep(self.system.joins_s)
        self.leader()

    # --- trials ---

    def cable(self) -> dict[str, float]:
        """The leader's cable is pulled."""
        leads = self.leader()

        def happens() -> None:
            self.lan.pull_cable(leads)
            self.leader(other_than=leads)

        try:
            return self._result(*self._asked(happens))
        finally:
            self.lan.plug_in(leads)
            self._joined()

    def node(self) -> dict[str, float]:
        """The leader's machine loses its power."""
        leads = self.leader()

        def happens() -> None:
            self.system.power_off(leads)
            self.leader(other_than=leads)

        try:
            return self._result(*self._asked(happens))
        finally:
            self.system.power_on(leads)
            self._joined()

    def cordon(self) -> dict[str, float]:
        """The leader is cordoned: another node takes the address, and gives it back afterwards."""
        leads = self.leader()

        def happens() -> None:
            self.lan.set_cordon(leads, True)
            self.leader(other_than=leads)
            self.lan.set_cordon(leads, False)
            time.sleep(1.0)
            self.leader()

        return self._result(*self._asked(happens))

    def stop(self) -> dict[str, float]:
        """The announcer is stopped with SIGTERM; it is restarted when another node has taken the address."""
        leads = self.leader()

        def happens() -> None:
            self.system.stop(leads)
            self.leader(other_than=leads)

        try:
            return self._result(*self._asked(happens))
        finally:
            self.system.start_node(leads)
            self._joined()

    def kill(self) -> dict[str, float]:
        """The announcer is killed, and restarted at once."""
        leads = self.leader()

        def happens() -> None:
            self.system.kill(leads)
            self.system.start_node(leads)
            self.leader()

        return self._result(*self._asked(happens))


class RoutedGaps:
    """The gap of BGP: a router spreads connections over the nodes, of which one loses its cable."""

    def __init__(self, lan: Lan, client: Any, address: str, ways: Callable[[], list[str]]) -> None:
        """Take the client behind the router, its address, and a function that returns the router's next hops."""
        self.lan, self.client, self.address, self._ways = lan, client, address, ways
        self._number = 0
        self._until(len(lan.nodes))

    def _until(self, count: int) -> None:
        wait_for(lambda: len(self._ways()) == count, f"{count} routes", WITHIN_S)

    def cable(self) -> dict[str, float]:
        """One node's cable is pulled: the time after which every request is answered promptly."""
        victim = self.lan.nodes[self._number % len(self.lan.nodes)]
        self._number += 1
        with Asker(self.client, self.address) as asker:
            time.sleep(BEFORE_S + random.uniform(0.0, PHASE_S))
            began = time.monotonic()
            self.lan.pull_cable(victim)
            self._until(len(self.lan.nodes) - 1)
            time.sleep(AFTER_S)
        self.lan.plug_in(victim)
        self._until(len(self.lan.nodes))
        return {"gap_s": failing_s(asker.asks, began), "failures": asker.failures, "syns_again": asker.syns_again}
