"""An address pool: named ranges of addresses, and which Services may have one of them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from lbagent.model.family import Family
from lbagent.pools.address_range import AddressRange
from lbagent.pools.label_selector import LabelSelector


class AddressPool(Struct, frozen=True):
    """An address pool of the file. `announce`: how its addresses are announced: `l2`, `bgp`, both or neither.

    `namespaces` () means all; without `auto_assign` only a Service that requests the pool gets an address of it.
    """

    name: str
    ranges: tuple[AddressRange, ...]
    announce: frozenset[str] = frozenset(("l2",))
    priority: int = 0
    auto_assign: bool = True
    avoid_buggy_ips: bool = True
    namespaces: frozenset[str] = frozenset()
    service_selector: LabelSelector = LabelSelector()

    def holds(self, address: bytes) -> bool:
        """Return whether a packed address is in the pool."""
        return any(address in each for each in self.ranges)

    def can_give(self, address: bytes) -> bool:
        """Return whether the pool has the address and allocates it."""
        return any(address in each and not (self.avoid_buggy_ips and each.is_buggy(address)) for each in self.ranges)

    def serves(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a Service with this namespace and these labels may have an address of it."""
        return (not self.namespaces or namespace in self.namespaces) and self.service_selector.matches(labels)

    def count(self, family: Family) -> int:
        """Return how many addresses of a family it can allocate."""
        ranges = (each for each in self.ranges if each.family is family)
        return sum(each.count(avoid_buggy=self.avoid_buggy_ips) for each in ranges)

    @property
    def order(self) -> tuple[int, str]:
        """The order of preference: higher priority first, then by name."""
        return (-self.priority, self.name)
