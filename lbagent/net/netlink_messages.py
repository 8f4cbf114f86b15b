"""Converts pyroute2's messages to this package's records. Pure: messages in, values out; None for unusable messages."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from lbagent.model.family import Family
from lbagent.net.routes import Route
from lbagent.net.snapshot import Link, NodeAddress

SOCKET_FAMILY = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_FAMILY_OF_SOCKET = {number: family for family, number in SOCKET_FAMILY.items()}
TABLE_LOCAL, TABLE_MAIN = 255, 254
TYPE_UNICAST, TYPE_LOCAL = 1, 2
PROTOCOL_KERNEL = 2  # the kernel made the route, with an address
TYPES_REFUSING = frozenset({6, 7, 8})  # blackhole, unreachable, prohibit
ROUTE_DEAD = 1  # RTNH_F_DEAD: the kernel ignores it
ROUTE_CLONED = 0x200  # a cache entry, not a route
LINK_UP = 1
LINK_LOWER_UP = 0x10000  # the driver has a carrier: the other end of the cable is there
ADDRESS_DEPRECATED = 0x20
ADDRESS_BAD = 0x08 | 0x40  # dadfailed, tentative: not the node's yet, or another host's
SCOPE_GLOBAL = 0
ETHERNET = 1  # ARPHRD_ETHER
NEIGHBOUR_UNICAST = 1
NUD_PERMANENT = 0x80
NTF_EXT_MANAGED = 1  # the kernel keeps the entry resolved by itself (Linux 5.16)
NUD_VALID = 0x80 | 0x40 | 0x02 | 0x10 | 0x04 | 0x08  # permanent noarp reachable probe stale delay
OUR_PROTOCOL = 76  # marks what an agent made: neighbours (`ip -d neigh`: proto 76), the rule of proxy_route.py
KERNEL_RULES = frozenset({(0, 255), (32766, 254), (32767, 253)})  # priority, table


def packed(text: str | None) -> bytes:
    """Convert an address in text to bytes; nothing to b''."""
    if not text:
        return b""
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def link(message: Any) -> Link:
    """Read RTM_NEWLINK. A device that is not Ethernet has no MAC here."""
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else ""
    mac = message.get_attr("IFLA_ADDRESS") if message["ifi_type"] == ETHERNET else None
    return Link(
        message["index"],
        message.get_attr("IFLA_IFNAME") or "",
        bytes.fromhex(mac.replace(":", "")) if mac else b"",
        message.get_attr("IFLA_MTU") or 0,
        bool(message["flags"] & LINK_UP),
        kind or "",
        message.get_attr("IFLA_LINK") or 0,
        message.get_attr("IFLA_MASTER") or 0,
    )


def has_carrier(message: Any) -> bool:
    """Return whether frames can leave by the device of RTM_NEWLINK: it is up and has a carrier."""
    wanted = LINK_UP | LINK_LOWER_UP
    return bool(message["flags"] & wanted == wanted)


def address(message: Any) -> NodeAddress | None:
    """Read RTM_NEWADDR or RTM_DELADDR."""
    text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    if not text:
        return None
    flags = message.get_attr("IFA_FLAGS") or message["flags"]
    usable = message["scope"] == SCOPE_GLOBAL and not flags & ADDRESS_BAD
    deprecated = usable and bool(flags & ADDRESS_DEPRECATED)
    return NodeAddress(packed(text), message["prefixlen"], message["index"], usable and not deprecated, deprecated)


def route(message: Any) -> tuple[int, Route] | None:
    """Read RTM_NEWROUTE: the table (main or local) and the route."""
    table = message.get_attr("RTA_TABLE") or message["table"]
    kind = message["type"]
    if message["flags"] & (ROUTE_DEAD | ROUTE_CLONED) or message["src_len"] or message["tos"]:
        return None
    if not (table == TABLE_LOCAL and kind == TYPE_LOCAL) and not (
        table == TABLE_MAIN and (kind == TYPE_UNICAST or kind in TYPES_REFUSING)
    ):
        return None
    hops = message.get_attr("RTA_MULTIPATH")
    first = hops[0] if hops else None
    metrics = message.get_attr("RTA_METRICS")
    network = packed(message.get_attr("RTA_DST")) or _FAMILY_OF_SOCKET[message["family"]].unspecified
    return table, Route(
        network,
        message["dst_len"],
        first["oif"] if first else message.get_attr("RTA_OIF") or 0,
        _gateway(first or message),
        packed(message.get_attr("RTA_PREFSRC")),
        message.get_attr("RTA_PRIORITY") or 0,
        (metrics.get_attr("RTAX_MTU") or 0) if metrics else 0,
        unicast=kind == TYPE_UNICAST,
        others=tuple((hop["oif"], _gateway(hop)) for hop in hops[1:]) if hops else (),
        simple=not (hops and len(hops) > 1) and message.get_attr("RTA_ENCAP_TYPE") is None,
        connected=message["proto"] == PROTOCOL_KERNEL,
    )


def _gateway(message: Any) -> bytes:
    via = message.get_attr("RTA_VIA")
    return packed(via["addr"] if via else message.get_attr("RTA_GATEWAY"))


def usual_rule(message: Any) -> bool:
    """Return whether a policy rule is one of the kernel's own three, or the agent's own, which routes no packet to a backend."""
    table = message.get_attr("FRA_TABLE") or message["table"]
    return (message.get_attr("FRA_PRIORITY") or 0, table) in KERNEL_RULES or message.get_attr(
        "FRA_PROTOCOL"
    ) == OUR_PROTOCOL


class NeighbourMessage(NamedTuple):
    """One neighbour of RTM_NEWNEIGH or RTM_DELNEIGH."""

    hop: tuple[int, bytes]  # ifindex, address
    mac: bytes  # b'': not resolved
    permanent: bool = False  # configured by hand
    managed: bool = False  # the kernel was asked to keep it resolved


def neighbour(message: Any) -> NeighbourMessage | None:
    """Read RTM_NEWNEIGH or RTM_DELNEIGH."""
    if message["family"] not in _FAMILY_OF_SOCKET or message["ndm_type"] != NEIGHBOUR_UNICAST:
        return None
    dst = message.get_attr("NDA_DST")
    if not dst:
        return None
    hop = (message["ifindex"], packed(dst))
    if message["event"] != "RTM_NEWNEIGH":
        return NeighbourMessage(hop, b"")
    state, mac = message["state"], message.get_attr("NDA_LLADDR")
    raw = bytes.fromhex(mac.replace(":", "")) if mac and state & NUD_VALID else b""
    return NeighbourMessage(
        hop,
        raw if len(raw) == 6 and any(raw) else b"",
        bool(state & NUD_PERMANENT),
        bool((message.get_attr("NDA_FLAGS_EXT") or 0) & NTF_EXT_MANAGED),
    )
