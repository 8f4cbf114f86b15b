"""A node's network in a few words."""

from __future__ import annotations

import ipaddress
import socket

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.net.routes import Route, RouteTable
from lbagent.net.snapshot import Link, NodeAddress, NodeNetwork

ETH0, CNI0, VLAN, DOWN = 2, 3, 4, 5
MAC = {ETH0: b"\x02\0\0\0\0\x02", CNI0: b"\x02\0\0\0\0\x03", VLAN: b"\x02\0\0\0\0\x04", DOWN: b"\x02\0\0\0\0\x05"}


def ip(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def route(prefix: str, ifindex: int, gateway: str = "", prefsrc: str = "", **more: object) -> Route:
    network = ipaddress.ip_network(prefix)
    return Route(
        network.network_address.packed, network.prefixlen, ifindex, ip(gateway) if gateway else b"",
        ip(prefsrc) if prefsrc else b"", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def address(text: str, ifindex: int, **more: bool) -> NodeAddress:
    interface = ipaddress.ip_interface(text)
    return NodeAddress(interface.ip.packed, interface.network.prefixlen, ifindex, **more)


ROUTES = (
    route("10.0.0.0/24", ETH0),
    route("0.0.0.0/0", ETH0, "10.0.0.254"),
    route("10.244.0.0/24", CNI0),
    route("10.60.0.0/16", VLAN, "10.61.0.1"),
    route("10.70.0.0/16", DOWN, "10.71.0.1"),
    route("10.80.0.0/16", ETH0, "10.0.0.253", mtu=1400),
    route("10.81.0.0/16", ETH0, "10.0.0.253", prefsrc="10.0.0.9"),
    route("10.90.0.0/16", ETH0, "10.0.0.253", simple=False),
    route("10.91.0.0/16", 0, unicast=False),
    route("fd00::/64", ETH0),
    route("::/0", ETH0, "fe80::1"),
)
ADDRESSES = (
    address("10.244.0.1/24", CNI0),
    address("10.0.0.1/24", ETH0),
    address("10.0.0.9/24", ETH0),
    address("fe80::2/64", ETH0, source=False),
    address("fd00::1/64", ETH0),
)
NEIGHBOURS = {
    (ETH0, ip("10.0.0.254")): b"\x02\0\0\0\1\1",
    (ETH0, ip("10.0.0.253")): b"\x02\0\0\0\1\2",
    (ETH0, ip("10.0.0.7")): b"\x02\0\0\0\1\3",
    (ETH0, ip("fe80::1")): b"\x02\0\0\0\1\1",
}


def network(
    routes: tuple[Route, ...] = ROUTES,
    addresses: tuple[NodeAddress, ...] = ADDRESSES,
    neighbours: dict[tuple[int, bytes], bytes] | None = None,
    **more: bool,
) -> NodeNetwork:
    links = {
        ETH0: Link(ETH0, "eth0", MAC[ETH0], 1500, True),
        CNI0: Link(CNI0, "cni0", MAC[CNI0], 1450, True, "bridge"),
        VLAN: Link(VLAN, "eth0.7", MAC[VLAN], 1500, True, "vlan", ETH0),
        DOWN: Link(DOWN, "eth1", MAC[DOWN], 1500, False),
    }
    own = [Route(a.address, len(a.address) * 8, a.ifindex) for a in addresses]
    return NodeNetwork(
        links, addresses,
        RouteTable(r for r in routes if len(r.network) == 4), RouteTable(r for r in routes if len(r.network) == 16),
        RouteTable(r for r in own if len(r.network) == 4), RouteTable(r for r in own if len(r.network) == 16),
        NEIGHBOURS if neighbours is None else neighbours, **more,
    )  # fmt: skip


def backend(where: str, node: str = "") -> Backend:
    return Backend(address=L3n4Addr(ip(where), 8080), node_name=node)
