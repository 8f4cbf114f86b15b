"""Which of this node's addresses a BGP session uses: one on the device towards the peer. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from ipaddress import IPv4Address

from lbagent.model.family import Family
from lbagent.net.snapshot import NodeAddress, NodeNetwork

_ROUTER_ID = re.compile(r"^router id ([0-9.]{7,15});$", re.MULTILINE)


def local_addresses(network: NodeNetwork, peer: bytes) -> tuple[bytes, bytes]:
    """Return the node's IPv4 and IPv6 address towards a peer; empty if the device has none of the family."""
    near = [each for each in _usable(network, Family.of(peer)) if _contains(each, peer)]
    route = network.route(peer)
    if near:
        nearest = max(near, key=lambda each: each.bits)
        device, own = nearest.ifindex, nearest.address
    elif route is not None and route.unicast:
        device, own = route.ifindex, route.prefsrc
    else:
        return b"", b""
    found = {family: _first(network, family, device) for family in Family}
    if own:
        found[Family.of(peer)] = own
    return found[Family.IPV4], found[Family.IPV6]


def choose_router_id(last_config: str, network: NodeNetwork, node: str, local4: Iterable[bytes]) -> bytes:
    """Return the node's BGP identifier, 4 bytes that no other router of the AS has (RFC 6286).

    The previous one stays while the node has this address: a change ends every session. Else it is an IPv4 address of the node,
    preferably one towards a peer; without any it is derived from the node's name.
    """
    own = sorted(each.address for each in _usable(network, Family.IPV4))
    by_name = hashlib.sha256(node.encode(errors="surrogateescape")).digest()[:4]
    if match := _ROUTER_ID.search(last_config):
        last = IPv4Address(match[1]).packed
        if last in own or (not own and last == by_name):
            return last
    towards_peer = sorted(each for each in local4 if each)
    return (*towards_peer, *own, by_name if any(by_name) else b"\x00\x00\x00\x01")[0]


def _usable(network: NodeNetwork, family: Family) -> list[NodeAddress]:
    return [each for each in network.addresses if each.source and Family.of(each.address) is family]


def _first(network: NodeNetwork, family: Family, device: int) -> bytes:
    """Return the first usable address of a device; a deprecated one last."""
    found = [each for each in _usable(network, family) if each.ifindex == device]
    return min(found, key=lambda each: (each.deprecated, each.address)).address if found else b""


def _contains(own: NodeAddress, address: bytes) -> bool:
    """Return whether an address is in the network of one of the node's addresses."""
    width = len(address) * 8
    mine, other = int.from_bytes(own.address, "big"), int.from_bytes(address, "big")
    return (mine ^ other) >> (width - own.bits) == 0
