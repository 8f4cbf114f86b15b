"""Connections that the kernel translates: reading its table, and deleting those whose backend or frontend is gone.

The next packet of a deleted one selects again: a TCP segment then meets a backend that does not know it, which resets it; UDP
moves to another backend.
Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h. Blocks: the kernel's whole table is read, in the kernel where it can
select by the backend, else here.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from lbagent.kernel.netlink_attributes import attribute, attributes_of, nested, read_u32, u32
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.family import Family

_NETLINK_NETFILTER = 12
_SUBSYSTEM = 1  # NFNL_SUBSYS_CTNETLINK
_GET, _DELETE = 1, 2
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ERROR, _DONE = 2, 3
_MESSAGE = struct.Struct("=IHHII")
_HEADER = struct.Struct("!BBH")
_FAMILY = {Family.IPV4: 2, Family.IPV6: 10}
_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _TIMEOUT, _ID, _ZONE, _FILTER = 1, 2, 3, 7, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_SOURCE = {Family.IPV4: 1, Family.IPV6: 3}
_DESTINATION = {Family.IPV4: 2, Family.IPV6: 4}
_PROTO_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_PROTOINFO, _PROTOINFO_TCP, _TCP_STATE = 4, 1, 1
_TCP_STATES = (
    "none", "syn_sent", "syn_recv", "established", "fin_wait", "close_wait", "last_ack", "time_wait", "close", "syn_sent2",
)  # fmt: skip
_ENDED = frozenset({"time_wait", "close"})
_SEEN_REPLY = 0x02  # IPS_SEEN_REPLY
_DST_NAT = 0x20  # IPS_DST_NAT
_BY_PORT = 1 << 3 | 1 << 4  # CTA_FILTER_FLAG: protocol, source port
# And the source address of IPv4: Linux leaves out the connections that have the IPv6 address, and selects all others.
_SELECTED_BY = {Family.IPV4: _BY_PORT | 1 << 0, Family.IPV6: _BY_PORT}
_NO_FILTER = errno.EOPNOTSUPP, errno.EINVAL  # of a kernel that cannot select
_FILTERED = 16  # backends for which the kernel selects, one after the other
_RECEIVE_BYTES = 1 << 20
_TIMEOUT_S = 30.0


class Ended(NamedTuple):
    """What ends: connections to a backend, `frontend` None: by whichever frontend; else those of one frontend to it."""

    backend: L3n4Addr
    frontend: L3n4Addr | None = None


class Connection(NamedTuple):
    """A connection that was translated: client, what it sent to, who answers, and how the kernel names it."""

    client: L3n4Addr
    frontend: L3n4Addr
    backend: L3n4Addr
    state: str  # of TCP the kernel's word, else `unreplied` or `established`
    snat_port: int  # 0: the client's address and port are kept
    left_s: int  # until the kernel forgets it, without another packet; whole seconds
    name: bytes

    @property
    def is_live(self) -> bool:
        """Whether it is more than the memory of a connection that has ended."""
        return self.state not in _ENDED


class Conntrack:
    """A socket for the connections of the calling thread's network namespace."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        self._socket.settimeout(_TIMEOUT_S)
        self._lock = threading.Lock()  # one request at a time, from whichever thread
        self._sequence = 0
        self.deleted: Counter[L4Type] = Counter()
        self.errors = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def end(self, gone: Collection[Ended]) -> int:
        """Delete the connections of these; return how many there were. Raises OSError where the table cannot be read."""
        by_backend: dict[L3n4Addr, set[L3n4Addr | None]] = {}
        for each in gone:
            by_backend.setdefault(each.backend, set()).add(each.frontend)
        count = 0
        for found in list(self._connections_of(by_backend)):
            frontends = by_backend.get(found.backend, ())
            if None in frontends or found.frontend in frontends:
                count += self._delete(found)
        return count

    def connections(self) -> Iterator[Connection]:
        """Yield the translated connections. Raises OSError."""
        for family in Family:
            yield from self._dump(family, b"")

    def datagrams(self) -> Iterator[Connection]:
        """Yield the translated conversations over UDP. Raises OSError."""
        for family in Family:
            try:
                yield from list(self._dump(family, _UDP))
            except OSError as error:
                if error.errno not in _NO_FILTER:
                    raise
                yield from (found for found in self._dump(family, b"") if found.frontend.protocol is L4Type.UDP)

    def _connections_of(self, backends: Collection[L3n4Addr]) -> Iterator[Connection]:
        if len(backends) > _FILTERED:
            for family in {each.family for each in backends}:
                yield from self._dump(family, b"")
            return
        for each in backends:
            try:
                yield from list(self._dump(each.family, _filter(each)))
            except OSError as error:
                if error.errno not in _NO_FILTER:
                    raise
                yield from self._dump(each.family, b"")

    def _dump(self, family: Family, body: bytes) -> Iterator[Connection]:
        for answer in self._ask(_GET, _REQUEST | _DUMP, family, body):
            if found := read_connection(family, answer):
                yield found

    def _delete(self, found: Connection) -> bool:
        try:
            self._ask(_DELETE, _REQUEST | _ACK, found.backend.family, found.name)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self.errors += 1
            return False
        self.deleted[found.backend.protocol] += 1
        return True

    def _ask(self, kind: int, flags: int, family: Family, body: bytes) -> list[bytes]:
        with self._lock:
            return list(self._answers(kind, flags, family, body))

    def _answers(self, kind: int, flags: int, family: Family, body: bytes) -> Iterator[bytes]:
        self._sequence += 1
        mine = self._sequence
        content = _HEADER.pack(_FAMILY[family], 0, 0) + body
        head = _MESSAGE.pack(_MESSAGE.size + len(content), _SUBSYSTEM << 8 | kind, flags, mine, 0)
        self._socket.sendto(head + content, (0, 0))
        while True:
            data, at = self._socket.recv(_RECEIVE_BYTES), 0
            while at + _MESSAGE.size <= len(data):
                length, found, _, sequence, _ = _MESSAGE.unpack_from(data, at)
                answer = data[at + _MESSAGE.size : at + length]
                at += length + (-length % 4)
                if sequence != mine:
                    continue
                if found in (_ERROR, _DONE):
                    number = -struct.unpack_from("=i", answer)[0] if len(answer) >= 4 else 0
                    if number:
                        raise OSError(number, os.strerror(number))
                    return
                yield answer[_HEADER.size :]


def _filter(backend: L3n4Addr) -> bytes:
    """Return what makes the kernel select the connections that a backend answers (Linux 5.8); of IPv6 also those of its port."""
    address = nested(_TUPLE_IP, attribute(_SOURCE[backend.family], backend.address))
    protocol = nested(
        _TUPLE_PROTO,
        attribute(_PROTO_NUMBER, bytes((backend.protocol.number,))),
        attribute(_SOURCE_PORT, backend.port.to_bytes(2, "big")),
    )
    return nested(_TUPLE_REPLY, address, protocol) + nested(
        _FILTER, _flags(1, 0), _flags(2, _SELECTED_BY[backend.family])
    )


def _flags(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


_UDP = nested(_TUPLE_ORIG, nested(_TUPLE_PROTO, attribute(_PROTO_NUMBER, bytes((L4Type.UDP.number,))))) + nested(
    _FILTER, _flags(1, 1 << 3), _flags(2, 0)
)


def read_connection(family: Family, answer: bytes) -> Connection | None:
    """Return a connection whose destination was translated; None for another one."""
    parts = attributes_of(answer)
    if not read_u32(parts.get(_STATUS, bytes(4))) & _DST_NAT or _TUPLE_REPLY not in parts:
        return None
    original, reply = attributes_of(parts[_TUPLE_ORIG]), attributes_of(parts[_TUPLE_REPLY])
    there, back = attributes_of(original[_TUPLE_PROTO]), attributes_of(reply[_TUPLE_PROTO])
    kind = L4Type.from_number(there.get(_PROTO_NUMBER, b"\0")[0])
    if kind is L4Type.NONE or _DESTINATION_PORT not in there or _SOURCE_PORT not in back:
        return None
    out, home = attributes_of(original[_TUPLE_IP]), attributes_of(reply[_TUPLE_IP])
    client = L3n4Addr(out[_SOURCE[family]], _port(there, _SOURCE_PORT), kind)
    seen = home[_DESTINATION[family]], _port(back, _DESTINATION_PORT)
    name = attribute(_TUPLE_ORIG | 0x8000, parts[_TUPLE_ORIG]) + u32(_ID, read_u32(parts[_ID]))
    if _ZONE in parts:
        name += attribute(_ZONE, parts[_ZONE])
    return Connection(
        client,
        L3n4Addr(out[_DESTINATION[family]], _port(there, _DESTINATION_PORT), kind),
        L3n4Addr(home[_SOURCE[family]], _port(back, _SOURCE_PORT), kind),
        _state(kind, parts),
        0 if seen == (client.address, client.port) else seen[1],
        read_u32(parts.get(_TIMEOUT, bytes(4))),
        name,
    )


def _port(parts: dict[int, bytes], kind: int) -> int:
    return int.from_bytes(parts.get(kind, b""), "big")


def _state(kind: L4Type, parts: dict[int, bytes]) -> str:
    if kind is L4Type.TCP:
        tcp = attributes_of(attributes_of(parts.get(_PROTOINFO, b"")).get(_PROTOINFO_TCP, b""))
        number = tcp.get(_TCP_STATE, b"\0")[0]
        return _TCP_STATES[number] if number < len(_TCP_STATES) else str(number)
    return "established" if read_u32(parts[_STATUS]) & _SEEN_REPLY else "unreplied"
