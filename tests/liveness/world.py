"""The part that finds dead nodes of one node, over Leases in memory and a network that the test describes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from lbagent.liveness.node_liveness import NodeLiveness
from lbagent.liveness.observed_nodes import Attempt
from lbagent.objects.object_event import ObjectEvent

TICK_S = 0.1


class Leases:
    """In place of LiveLeases: what the test publishes for others; `takes` is whether the API server does."""

    is_listed, failure = True, ""

    def __init__(self, own: str) -> None:
        self.own = own
        self.nodes: dict[str, tuple[str, ...]] = {}
        self.of_others: dict[str, set[str]] = {}
        self.suspects: frozenset[str] = frozenset()
        self.before: frozenset[str] = frozenset()  # of an earlier agent of this node
        self.addresses: tuple[str, ...] = ()
        self.takes = True
        self.on_change = lambda: None

    def publish(self, addresses: tuple[str, ...], suspects: frozenset[str]) -> None:
        self.addresses, self.suspects = addresses, suspects

    def suspected_by_this_node(self) -> frozenset[str]:
        return self.before

    @property
    def unpublished(self) -> frozenset[str]:
        return frozenset() if self.takes else self.suspects

    @property
    def suspicions(self) -> dict[str, frozenset[str]]:
        found = {node: set(by) for node, by in self.of_others.items() if by}
        for node in self.suspects if self.takes else ():
            found.setdefault(node, set()).add(self.own)
        return {node: frozenset(by) for node, by in found.items()}


class Network:
    """In place of NodeAsker: nodes that are not in `silent` answer at once, those in `hung` by their kernels alone."""

    failure = ""

    def __init__(self, world: World) -> None:
        self.world = world

    def read(self, nodes: Collection[str]) -> None:
        pass

    def ask(self, node: str, _address: bytes) -> None:
        if node not in self.world.silent | self.world.hung:
            self.world.liveness._answered(node, Attempt.ECHO)

    def ask_kernel(self, node: str, _address: bytes, attempt: Attempt) -> bool:
        if node not in self.world.silent:
            self.world.liveness._answered(node, attempt)
        return True


class World:
    """A node among so many, n0, n1, ...: by default the first."""

    def __init__(self, nodes: int, folder: Path, own: str = "n0", *, before: Collection[str] = ()) -> None:
        self.now = 1000.0
        self.silent: set[str] = set()
        self.hung: set[str] = set()
        self.events: list[ObjectEvent] = []
        self.own_addresses = [b"\x0a\0\0\1"]
        self.key = folder / "key"
        self.key.write_text("k" * 40)
        self.leases = Leases(own)
        self.leases.before = frozenset(before)

        async def make_key() -> bool:
            return True

        leases: Any = self.leases
        self.liveness = NodeLiveness(
            own, leases, port=10257, key_file=str(self.key), observers=8, addresses=lambda: self.own_addresses,
            make_key=make_key, events=[self.events.append], clock=lambda: self.now,
        )  # fmt: skip
        network: Any = Network(self)
        self.liveness._asker = network
        self.dead: list[frozenset[str]] = []
        self.liveness.on_dead.append(self.dead.append)
        self.leases.nodes = {f"n{number}": (f"10.0.0.{number + 1}",) for number in range(nodes)}
        self.leases.on_change()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.liveness._tick(self.now)

    def others_suspect(self, *nodes: str) -> None:
        """Let three other observers publish that they miss these nodes."""
        names = [name for name in self.leases.nodes if name not in nodes and name != self.leases.own]
        self.leases.of_others = {node: set(names[:3]) for node in nodes}
