"""Longest prefix match over a routing table. Pure.

The kernel takes the longest prefix, then the lowest metric. Source: `fib_table_lookup`, `fib6_table_lookup` (behaviour).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Route(msgspec.Struct, frozen=True, gc=False):
    """One route. `simple` is false when the route alone does not determine the output (several next hops, encapsulation)."""

    network: bytes
    bits: int
    ifindex: int
    gateway: bytes = b""  # empty: the destination itself is the neighbour
    prefsrc: bytes = b""
    metric: int = 0
    mtu: int = 0  # 0: the device's
    unicast: bool = True  # false: unreachable, blackhole, prohibit
    simple: bool = True
    others: tuple[tuple[int, bytes], ...] = ()  # further next hops (ifindex, gateway) of a route that has several
    connected: bool = False  # made by the kernel with an address, its `prefsrc`; in any other one that is a setting


BLOCK_BITS = {4: 24, 16: 64}  # by bytes of an address: all addresses of a block usually use one route
MAX_BLOCKS = 4096


class RouteTable:
    """Immutable table of one family, one dictionary per prefix length; a look-up costs at most one probe per length in use.

    The routes of a block of addresses are cached: 100,000 backends are in a few hundred of them.
    """

    __slots__ = ("_by_bits", "_divided", "_of_block", "_shift", "default_devices", "routes")

    def __init__(self, routes: Iterable[Route]) -> None:
        """Keep the best route of each prefix; `default_devices` are the ifindexes of all default routes."""
        tables: dict[int, dict[int, Route]] = {}
        default_devices: set[int] = set()
        for route in routes:
            if not route.bits and route.unicast:
                default_devices.update((route.ifindex, *(index for index, _ in route.others)))
            width = len(route.network) * 8
            table = tables.setdefault(width - route.bits, {})
            key = int.from_bytes(route.network, "big") >> (width - route.bits)
            known = table.get(key)
            if known is None or route.metric < known.metric:
                table[key] = route
            elif route.metric == known.metric and (route.ifindex, route.gateway) != (known.ifindex, known.gateway):
                table[key] = msgspec.structs.replace(known, simple=False)  # the kernel may take either
        self.default_devices = frozenset(default_devices)
        self._by_bits = tuple(sorted(tables.items()))
        self.routes = tuple(route for _, table in self._by_bits for route in table.values())
        width = len(self.routes[0].network) if self.routes else 0
        self._shift = width * 8 - BLOCK_BITS.get(width, 0)
        self._divided = {key >> self._shift - at for at, table in self._by_bits if at < self._shift for key in table}
        self._of_block: dict[int, Route | None] = {}

    def lookup(self, address: bytes) -> Route | None:
        """Return the route packets to this address take."""
        number = int.from_bytes(address, "big")
        block, known = number >> self._shift, self._of_block
        if block in known:
            return known[block]
        route = self._longest(number)
        if block not in self._divided:
            if len(known) >= MAX_BLOCKS:
                known.clear()
            known[block] = route
        return route

    def _longest(self, number: int) -> Route | None:
        for shift, table in self._by_bits:
            route = table.get(number >> shift)
            if route is not None:
                return route
        return None

    def exact(self, network: bytes, bits: int) -> Route | None:
        """Return the best route of exactly this prefix."""
        shift = len(network) * 8 - bits
        for known, table in self._by_bits:
            if known == shift:
                return table.get(int.from_bytes(network, "big") >> shift)
        return None


def contains(network: bytes, bits: int, address: bytes) -> bool:
    """Return whether the prefix holds the address (both of one family, else false)."""
    if len(network) != len(address):
        return False
    shift = len(network) * 8 - bits
    return int.from_bytes(network, "big") >> shift == int.from_bytes(address, "big") >> shift


def changed_prefixes(old: RouteTable, new: RouteTable) -> tuple[tuple[bytes, int], ...]:
    """List the prefixes whose best route differs between two tables."""
    if old is new:
        return ()
    before = {(r.network, r.bits): r for r in old.routes}
    after = {(r.network, r.bits): r for r in new.routes}
    return tuple(sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)))
