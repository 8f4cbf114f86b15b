"""The devices of this node that announce each address, or why none does: kept until the node or the address changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from lbagent.announce.announce_refusal import AnnounceRefusal, RefusalReason
from lbagent.announce.desired_vips import DesiredVip
from lbagent.announce.l2 import reach
from lbagent.net.snapshot import NodeNetwork
from lbagent.pools.announcement import L2Settings


class NodeState(NamedTuple):
    """The inputs of placements besides the addresses. `refusal`: why the node announces nothing, None when it may.

    `attached` are names of devices with programs, `carriers` devices by which frames can leave, by ifindex.
    """

    network: NodeNetwork
    attached: frozenset[str]
    carriers: frozenset[int]
    settings: L2Settings
    refusal: AnnounceRefusal | None

    def is_as(self, other: NodeState | None) -> bool:
        """Return whether another state has the same placements: of the network only links and addresses matter."""
        return other is not None and (
            (self.network.links, self.network.addresses, *self[1:])
            == (other.network.links, other.network.addresses, *other[1:])
        )

    def networks(self) -> list[str]:
        """Return the networks whose addresses this node can announce now."""
        return [] if self.refusal else reach.networks(self.network, self.attached, self.carriers, self.settings)

    def macs(self) -> set[bytes]:
        """Return the MAC addresses of this node."""
        return {link.mac for link in self.network.links.values() if link.mac}


class Placements:
    """`places`: the MAC address by ifindex, for each address; `refusals`: why this node may not announce one."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._state: NodeState | None = None
        self.places: dict[bytes, dict[int, bytes]] = {}
        self.refusals: dict[bytes, AnnounceRefusal] = {}

    def use(self, state: NodeState) -> bool:
        """Set the state of the node; return whether every address must be placed again."""
        if state.is_as(self._state):
            return False
        self._state = state
        self.places.clear()
        self.refusals.clear()
        return True

    def place(self, address: bytes, vip: DesiredVip | None, *, is_served: bool) -> None:
        """Place an address; `vip` None: it is announced as an earlier agent left it, until the desired addresses are known.

        `is_served`: the programs of this node have a backend for it. An address of policy Cluster is also announced without one.
        """
        assert self._state is not None
        network, attached, carriers, settings, refusal = self._state
        self.places[address], why = reach.announcing_devices(network, attached, carriers, settings, address)
        no_endpoint = None
        if vip is not None and not vip.admits(self._node):
            no_endpoint = AnnounceRefusal(RefusalReason.NO_ENDPOINT_HERE)
        elif vip is not None and vip.is_local and not is_served:
            no_endpoint = AnnounceRefusal(RefusalReason.NOT_SERVED_HERE)
        self.refusals.pop(address, None)
        if reason := refusal or no_endpoint or why:
            self.refusals[address] = reason

    def drop(self, addresses: Iterable[bytes]) -> None:
        """Remove addresses."""
        for address in addresses:
            self.places.pop(address, None)
            self.refusals.pop(address, None)

    def answers(self, addresses: Iterable[bytes]) -> dict[tuple[int, bytes], bytes]:
        """Return the MAC address by ifindex and address, for the addresses that this node answers for."""
        return {(ifindex, each): mac for each in addresses for ifindex, mac in self.places[each].items()}

    @property
    def devices(self) -> Collection[int]:
        """The devices that announce an address, by ifindex."""
        return {ifindex for found in self.places.values() for ifindex in found}
