"""The kernel's messages about new connections: who sent to which address, and who answers. Needs CAP_NET_ADMIN.

A connection is new when its first packet has left the node or reached its socket: then it is translated. One that is refused or
dropped before has no message. Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from lbagent.kernel.netlink_attributes import attributes_of
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.family import Family

_NETLINK_NETFILTER, _SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NEW = 12, 270, 1, 1
_NEW = 1 << 8  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW
_MESSAGE, _HEADER_BYTES = struct.Struct("=IHHII"), 4
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
_TUPLE_ORIG, _TUPLE_REPLY, _TUPLE_IP, _TUPLE_PROTO = 1, 2, 1, 2
_SOURCE = {Family.IPV4: 1, Family.IPV6: 3}
_DESTINATION = {Family.IPV4: 2, Family.IPV6: 4}
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_BUFFER_BYTES = 8 << 20  # some 20,000 connections between two reads
_SO_RCVBUFFORCE = 33
_READ_BYTES = 1 << 16
_PROTOCOLS = {kind.number: kind for kind in L4Type if kind is not L4Type.NONE}


class NewConnection(NamedTuple):
    """A connection: `answering` is `frontend` where no program translated it."""

    client: L3n4Addr
    frontend: L3n4Addr
    answering: L3n4Addr


class ConntrackEvents:
    """A socket for the new connections of the calling thread's network namespace."""

    def __init__(self) -> None:
        """Subscribe. Raises OSError."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
            self._socket.bind((0, 0))
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NEW)
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def read(self, most: int) -> Iterator[NewConnection | None]:
        """Yield the connections since the last call, `most` messages at a time; None where the kernel lost some."""
        receive = self._socket.recv
        for _ in range(most):
            try:
                data = receive(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                yield None
                continue
            yield from parsed(data)


def parsed(data: bytes) -> Iterator[NewConnection]:
    """Yield the connections of one datagram. What is no new connection with ports is passed over."""
    at = 0
    while at + _MESSAGE.size <= len(data):
        length, kind, _, _, _ = _MESSAGE.unpack_from(data, at)
        body = data[at + _MESSAGE.size : at + length]
        at += max(length + (-length % 4), _MESSAGE.size)
        family = _FAMILIES.get(body[0]) if kind == _NEW and len(body) > _HEADER_BYTES else None
        if family is not None and (found := _connection(family, body[_HEADER_BYTES:])) is not None:
            yield found


def _connection(family: Family, body: bytes) -> NewConnection | None:
    parts = attributes_of(body)
    try:
        original, reply = attributes_of(parts[_TUPLE_ORIG]), attributes_of(parts[_TUPLE_REPLY])
        there, back = attributes_of(original[_TUPLE_PROTO]), attributes_of(reply[_TUPLE_PROTO])
        kind = _PROTOCOLS[there[_NUMBER][0]]
        out, home = attributes_of(original[_TUPLE_IP]), attributes_of(reply[_TUPLE_IP])
        return NewConnection(
            L3n4Addr(out[_SOURCE[family]], int.from_bytes(there[_SOURCE_PORT], "big"), kind),
            L3n4Addr(out[_DESTINATION[family]], int.from_bytes(there[_DESTINATION_PORT], "big"), kind),
            L3n4Addr(home[_SOURCE[family]], int.from_bytes(back[_SOURCE_PORT], "big"), kind),
        )
    except (KeyError, IndexError, ValueError):
        return None
