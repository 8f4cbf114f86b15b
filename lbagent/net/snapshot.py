"""The current network of this node: an immutable value. Pure; netlink.py fills it, paths.py and targets/bpf/nexthop.py read it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lbagent.kernel.features import XdpFeature
from lbagent.model.family import Family
from lbagent.net.routes import Route, RouteTable

LOOPBACK4 = 127  # 127.0.0.0/8 is the node's own, whatever its addresses are


class Link(msgspec.Struct, frozen=True, gc=False):
    """A network device. `mac` is empty where frames have no Ethernet header; `kind` is '' for a real NIC.

    `parent` and `master` are indexes of other devices, 0 for none: IFLA_LINK (a VLAN's device), IFLA_MASTER (its bond or bridge).
    """

    index: int
    name: str
    mac: bytes
    mtu: int
    up: bool
    kind: str = ""
    parent: int = 0
    master: int = 0


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    """An address of this node. `source`: whether the kernel would select it by itself (global, not deprecated).

    A `deprecated` one is no longer selected; its existing users keep it (RFC 4862 §5.5.4).
    """

    address: bytes
    bits: int
    ifindex: int
    source: bool = True
    deprecated: bool = False


Neighbours = Mapping[tuple[int, bytes], bytes]  # (ifindex, address) -> MAC


class NodeNetwork(msgspec.Struct, frozen=True):
    """Links, addresses, routes of the main table, resolved neighbours, XDP features of the drivers.

    `policy4`/`policy6`: there are rules beyond the kernel's three, so the main table alone does not decide.
    """

    links: Mapping[int, Link]
    addresses: tuple[NodeAddress, ...]
    routes4: RouteTable
    routes6: RouteTable
    own4: RouteTable
    own6: RouteTable
    neighbours: Neighbours
    policy4: bool = False
    policy6: bool = False
    features: Mapping[int, XdpFeature] = {}  # by device; empty where the kernel does not report them

    def is_own(self, address: bytes) -> bool:
        """Return whether packets to this address end on this node."""
        if len(address) == 4:
            return address[0] == LOOPBACK4 or self.own4.lookup(address) is not None
        return self.own6.lookup(address) is not None

    def has(self, address: bytes) -> bool:
        """Return whether a device of this node has exactly this address."""
        return any(item.address == address for item in self.addresses)

    def route(self, address: bytes) -> Route | None:
        """Return the main table's route."""
        return (self.routes4 if Family.of(address) is Family.IPV4 else self.routes6).lookup(address)

    def policy(self, address: bytes) -> bool:
        """Return whether policy rules may route this family other than the main table."""
        return self.policy4 if Family.of(address) is Family.IPV4 else self.policy6

    def by_name(self, name: str) -> Link | None:
        """Find a device by name."""
        return next((link for link in self.links.values() if link.name == name), None)


EMPTY = NodeNetwork({}, (), RouteTable(()), RouteTable(()), RouteTable(()), RouteTable(()), {})
