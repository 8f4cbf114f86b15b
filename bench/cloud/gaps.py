"""Gaps: how long a client outside goes without an answer when what announces an address dies, or leaves in peace."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from bench.cloud import wire
from bench.cloud.asking import Asker, failing_s, longest_gap_s
from bench.cloud.stage import SERVICES, Lan, service
from tests.lab.netns import wait_for

BEFORE_S, AFTER_S = 0.5, 1.5  # asked before it happens, and after another node answers
PHASE_S = 1.0  # waited at random before it happens: Leases and hellos have a beat
WITHIN_S = 90.0
NAME = "web"
Say = Callable[[str], object]


class System(Protocol):
    """What announces addresses on a LAN. `joins_s`: until the others know a node that is back."""

    name: str
    joins_s: float
    lan: Lan

    def start(self) -> None:
        """Start it."""

    def kill(self, name: str) -> None:
        """Kill what announces on a node."""

    def stop(self, name: str) -> None:
        """Stop it in peace."""

    def start_node(self, name: str) -> None:
        """Start it again."""

    def power_off(self, name: str) -> None:
        """Let a node die without a word."""

    def power_on(self, name: str) -> None:
        """Let it boot."""


class Gaps:
    """The gaps of one system. Every method is one trial, and returns {"gap_s", "failures", "syns_again"}."""

    def __init__(self, system: System) -> None:
        """Make a Service, and wait until its address answers."""
        self.system, self.lan = system, system.lan
        self.lan.plane.ask("POST", SERVICES, service(NAME))
        self.lan.add_backends(NAME)
        self.address = wait_for(self._address, "an address", WITHIN_S)
        self.leader()

    def close(self) -> None:
        """Take the Service away, for the next one of its name."""
        self.lan.plane.send("DELETE", f"{SERVICES}/{NAME}")
        self.lan.remove_backends(NAME)

    def _address(self) -> str:
        ingress = self.lan.plane.ask("GET", f"{SERVICES}/{NAME}")["status"]["loadBalancer"].get("ingress", [])
        return str(ingress[0]["ip"]) if ingress else ""

    def leader(self, **more: Any) -> str:
        """Return the one node that answers."""
        return wire.leader(self.lan, self.address, **more)

    def _asked(self, happens: Callable[[], object]) -> tuple[Asker, float]:
        """Ask while something happens; return the client, and when it began to happen."""
        self.lan.client.ip("neigh flush dev eth0")  # it may know another node, which would go on
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
        """The leader is cordoned: another node takes the address, and it comes back afterwards."""
        leads = self.leader()

        def happens() -> None:
            self.lan.set_cordon(leads, True)
            self.leader(other_than=leads)
            self.lan.set_cordon(leads, False)
            time.sleep(1.0)
            self.leader()

        return self._result(*self._asked(happens))

    def stop(self) -> dict[str, float]:
        """What announces is stopped in peace; it is started again when another node has taken the address."""
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
        """What announces is killed, and started again at once."""
        leads = self.leader()

        def happens() -> None:
            self.system.kill(leads)
            self.system.start_node(leads)
            self.leader()

        return self._result(*self._asked(happens))


class RoutedGaps:
    """The gap of BGP: a router spreads connections over the nodes, of which one loses its cable."""

    def __init__(self, lan: Lan, client: Any, address: str, ways: Callable[[], list[str]]) -> None:
        """Take the client behind the router, what it asks, and what tells the nodes by which the router goes."""
        self.lan, self.client, self.address, self._ways = lan, client, address, ways
        self._number = 0
        self._until(len(lan.nodes))

    def _until(self, count: int) -> None:
        wait_for(lambda: len(self._ways()) == count, f"{count} routes", WITHIN_S)

    def cable(self) -> dict[str, float]:
        """One node's cable is pulled: the time after which every ask is answered promptly."""
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
