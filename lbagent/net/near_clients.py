"""Neighbours that are neither backends nor gateways: clients on the same link, to which XDP sends replies, too. Pure.

The programs do not report their clients, so these are the neighbours that the kernel has resolved most recently: a client on the
link that sends to this node is among them. A neighbour that stops answering is removed.
"""

from __future__ import annotations

from collections.abc import Collection

from lbagent.net.paths import Hop
from lbagent.net.snapshot import NodeNetwork

MAX_CLIENTS = 128  # each costs the network one request in about half a minute
SILENT_S = 30.0  # of silence


class NearClients:
    """The last neighbours of this kind, the oldest first. `now` is seconds of any steady clock."""

    def __init__(self) -> None:
        self._seen: dict[Hop, float] = {}  # when it was last resolved

    def follow(self, network: NodeNetwork, devices: Collection[int], now: float) -> None:
        """Record the resolved neighbours; new ones are those behind `devices`."""
        for hop in network.neighbours:
            if hop in self._seen or (hop[0] in devices and not _is_link_local(hop[1])):
                self._seen[hop] = now
        for hop in list(self._seen)[: max(0, len(self._seen) - MAX_CLIENTS)]:
            del self._seen[hop]

    def hops(self, network: NodeNetwork, now: float) -> list[Hop]:
        """Return the neighbours to keep resolved; those that have been silent for too long are removed."""
        for hop in [hop for hop, at in self._seen.items() if now - at > SILENT_S and hop not in network.neighbours]:
            del self._seen[hop]
        return [hop for hop in self._seen if hop[0] in network.links]

    def next_look_s(self, network: NodeNetwork) -> float | None:
        """Return the seconds until a client may have been silent for too long; None: all answer."""
        return SILENT_S if any(hop not in network.neighbours for hop in self._seen) else None


def _is_link_local(address: bytes) -> bool:
    """Return whether it is in fe80::/10: a router's or a host's second address, from which no client sends."""
    return len(address) == 16 and address[0] == 0xFE and address[1] & 0xC0 == 0x80
