"""The policy rule and the route by which packets with a mark are delivered to this node, whatever their destination is.

A packet that a program gives to the socket of an L7 proxy has the frontend's address as its destination, which no device of the
node has: without the rule the kernel would forward it. Rule, table and protocol number identify the owner; nothing else is changed.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from lbagent.errors import KernelError
from lbagent.iproute import AsyncIPRoute, NetlinkError
from lbagent.model.family import Family
from lbagent.net.netlink_messages import OUR_PROTOCOL

RULE_PRIORITY = (
    19  # after the table of the node's own addresses, before the rules of CNIs and VPNs that have a higher number
)
_LOOPBACK = 1  # ifindex of lo
_SOCKET_FAMILY = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_ALL = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}
_MASK = 0xFFFFFFFF
_ABSENT = frozenset({errno.ENOENT, errno.ESRCH, errno.EAFNOSUPPORT, errno.EOPNOTSUPP})  # the last two: no such family


async def add(mark: int, families: Collection[Family]) -> bool:
    """Make the rule and the route of each family that lack; return whether any did. Raises KernelError."""
    made = False
    async with AsyncIPRoute() as ipr:
        for family in families:
            made |= await _unless("make", ipr.route, "add", {errno.EEXIST}, **_route(mark, family))
            made |= await _unless("make", ipr.rule, "add", {errno.EEXIST}, **_rule(mark, family))
    return made


async def remove(mark: int, families: Collection[Family] = tuple(Family)) -> bool:
    """Remove them; return whether any was there. Raises KernelError."""
    gone = False
    async with AsyncIPRoute() as ipr:
        for family in families:
            gone |= await _unless("remove", ipr.rule, "del", _ABSENT, **_rule(mark, family))
            gone |= await _unless("remove", ipr.route, "del", _ABSENT, **_route(mark, family))
    return gone


def _rule(mark: int, family: Family) -> dict[str, Any]:
    words = {"priority": RULE_PRIORITY, "fwmark": mark, "fwmask": _MASK, "table": mark, "protocol": OUR_PROTOCOL}
    return {"family": _SOCKET_FAMILY[family], **words}


def _route(mark: int, family: Family) -> dict[str, Any]:
    words = {
        "dst": _ALL[family],
        "type": "local",
        "scope": "host",
        "oif": _LOOPBACK,
        "table": mark,
        "proto": OUR_PROTOCOL,
    }
    return {"family": _SOCKET_FAMILY[family], **words}


async def _unless(
    op: str, change: Callable[..., Awaitable[Any]], command: str, codes: Collection[int], **words: Any
) -> bool:
    """Change something; return False where the kernel answers with one of these codes. Raises KernelError."""
    try:
        await change(command, **words)
    except NetlinkError as error:
        if error.code in codes:
            return False
        subject = f"the {'route' if 'dst' in words else 'rule'} of mark {words['table']:#x}"
        raise KernelError(op, error.code, subject) from None
    except OSError as error:
        raise KernelError(op, error.errno or errno.EIO, f"the rule of mark {words['table']:#x}") from None
    return True
