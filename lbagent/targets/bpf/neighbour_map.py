"""lb_neighbor: the neighbours that the agent of these pins requested of the kernel. The agent may have died since."""

from __future__ import annotations

from collections.abc import Collection

from lbagent.mapped_address import mapped, unmapped
from lbagent.maps.layout import LB_NEIGHBOR_KEY
from lbagent.maps.lbmaps import LBMaps
from lbagent.net.paths import Hop

MAP = "lb_neighbor"


class NeighbourMap:
    """The requested neighbours in the map. A RequestedNeighbours of net/neighbours.py."""

    def __init__(self, maps: LBMaps) -> None:
        self._maps = maps

    def read(self) -> set[Hop]:
        """Return all of them."""
        out: set[Hop] = set()
        if MAP not in self._maps.specs:  # pins of an earlier version
            return out
        for key, _ in self._maps.items(MAP):
            ifindex, address = LB_NEIGHBOR_KEY.unpack(key)
            assert isinstance(ifindex, int)
            assert isinstance(address, bytes)
            out.add((ifindex, unmapped(address)))
        return out

    def add(self, hops: Collection[Hop]) -> None:
        """Add some."""
        self._maps.put_many(MAP, [(_key(hop), b"\1") for hop in sorted(hops)])

    def remove(self, hops: Collection[Hop]) -> None:
        """Remove some."""
        self._maps.delete_many(MAP, [_key(hop) for hop in sorted(hops)])


def _key(hop: Hop) -> bytes:
    ifindex, address = hop
    return LB_NEIGHBOR_KEY.pack(ifindex, mapped(address))
