"""Which binds belong to a process: a process that listens there keeps its connections, and none are diverted. Pure."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from lbagent.apilb.native.pool_objects import Bind
from lbagent.kernel.sock_diag import ConnectedSocket
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family


def listener_at(bind: Bind, listeners: Iterable[ConnectedSocket]) -> str:
    """Return the ADDRESS:PORT of a listener that would lose connections to the bind; '' if there is none.

    A listener on all addresses conflicts with every bind, and a bind of all addresses with every listener. A socket of [::] also
    accepts IPv4, unless IPV6_V6ONLY is set.
    """
    for found in listeners:
        address, port = found.local
        if port == bind.port and any(_overlap(each, address, found) for each in bind.addresses):
            return str(L3n4Addr(address, port))
    return ""


def _overlap(bound: bytes, address: bytes, listener: ConnectedSocket) -> bool:
    family = Family.of(bound)
    if listener.family == socket.AF_INET6 and address == Family.IPV6.unspecified:
        return family is Family.IPV6 or not listener.v6only
    if Family.of(address) is not family:
        return False
    return address == bound or family.unspecified in (address, bound)
