"""Sockets of the calling thread's network namespace: the cookie of the namespace, UDP and TCP sockets (netlink, sock_diag).

Source: include/uapi/linux/{inet_diag,sock_diag}.h; the kernel's udp_diag (behaviour).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator

from msgspec import Struct

from lbagent.mapped_address import unmapped

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY, _DESTROY = 20, 21  # nlmsg_type
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ESTABLISHED = 1  # also the state of a connected UDP socket
_SYN_SENT, _SYN_RECV, _FIN_WAIT1, _FIN_WAIT2, _TIME_WAIT, _CLOSE_WAIT, _LISTEN, _NEW_SYN_RECV = 2, 3, 4, 5, 6, 8, 10, 12
_ANY_STATE = 0xFFFFFFFF
_HEADER = 16  # bytes of nlmsghdr
_ID_AT, _ID_BYTES = 4, 48  # struct inet_diag_sockid in struct inet_diag_msg
_COOKIE_AT = 40  # in it
_MESSAGE_BYTES = 72  # struct inet_diag_msg
_ATTRIBUTE_V6ONLY = 11  # INET_DIAG_SKV6ONLY
_TIMEOUT_S = 2.0
_SO_NETNS_COOKIE = 71  # Linux 5.14
_GONE = (errno.ENOENT, errno.ESTALE)  # it was closed meanwhile


class ConnectedSocket(Struct, frozen=True):
    """One socket. `ident` is the kernel's identifier (struct inet_diag_sockid)."""

    family: int
    ident: bytes
    protocol: int = socket.IPPROTO_UDP
    v6only: bool = False
    state: int = 0  # TCP_ESTABLISHED = 1, ...: linux/tcp_states.h

    @property
    def cookie(self) -> int:
        """The socket's cookie, as programs read it."""
        low, high = struct.unpack_from("=II", self.ident, _COOKIE_AT)
        return int(low | high << 32)

    @property
    def local(self) -> tuple[bytes, int]:
        """Its own address, packed, and port; IPv4 if an IPv6 socket uses it."""
        return self._address(4), int.from_bytes(self.ident[:2], "big")

    @property
    def peer(self) -> tuple[bytes, int]:
        """The address that it is connected to, packed, and port."""
        return self._address(20), int.from_bytes(self.ident[2:4], "big")

    def _address(self, at: int) -> bytes:
        if self.family == socket.AF_INET:
            return self.ident[at : at + 4]
        return unmapped(self.ident[at : at + 16])


def netns_cookie() -> int:
    """Return the cookie of the calling thread's network namespace, as programs read it. Raises OSError before Linux 5.14."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))[0])


def connected_udp_sockets() -> list[ConnectedSocket]:
    """Return the connected UDP sockets of both families. Raises OSError (ENOENT: the kernel has no udp_diag)."""
    return _sockets(socket.IPPROTO_UDP, 1 << _ESTABLISHED)


def tcp_connections_to(port: int) -> list[ConnectedSocket]:
    """Return the TCP sockets connected, or connecting, to a port (host order) of any address. Raises OSError."""
    return _sockets(socket.IPPROTO_TCP, 1 << _ESTABLISHED | 1 << _SYN_SENT, peer_port=port)


def tcp_connections_at(port: int) -> list[ConnectedSocket]:
    """Return the TCP sockets whose own port it is (host order; 0: any), and that neither side alone could end. Raises OSError."""
    states = _ESTABLISHED, _SYN_RECV, _FIN_WAIT1, _FIN_WAIT2, _CLOSE_WAIT, _NEW_SYN_RECV
    return _sockets(socket.IPPROTO_TCP, sum(1 << state for state in states), port=port)


def tcp_listeners() -> list[ConnectedSocket]:
    """Return the TCP sockets that listen. Raises OSError."""
    return _sockets(socket.IPPROTO_TCP, 1 << _LISTEN)


def tcp_sockets() -> list[ConnectedSocket]:
    """Return the TCP sockets with a peer, in any state that has a process. Raises OSError."""
    return _sockets(socket.IPPROTO_TCP, _ANY_STATE & ~(1 << _LISTEN | 1 << _TIME_WAIT | 1 << _NEW_SYN_RECV))


def udp_sockets() -> list[ConnectedSocket]:
    """Return the UDP sockets of both families, connected or not. Raises OSError (ENOENT: the kernel has no udp_diag)."""
    return _sockets(socket.IPPROTO_UDP, _ANY_STATE)


def _sockets(protocol: int, states: int, *, port: int = 0, peer_port: int = 0) -> list[ConnectedSocket]:
    ident = struct.pack(">HH", port, peer_port) + bytes(_ID_BYTES - 4)
    out = []
    with _open() as netlink:
        for family in (socket.AF_INET, socket.AF_INET6):
            _send(netlink, _BY_FAMILY, _REQUEST | _DUMP, ConnectedSocket(family, ident, protocol), states)
            for body in _answers(netlink, dump=True):
                found = body[_ID_AT : _ID_AT + _ID_BYTES]
                out.append(ConnectedSocket(family, found, protocol, _is_v6only(body[_MESSAGE_BYTES:]), body[1]))
    return out


def _is_v6only(attributes: bytes) -> bool:
    at = 0
    while at + 5 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if kind == _ATTRIBUTE_V6ONLY:
            return bool(attributes[at + 4])
        if length < 4:
            break
        at += length + (-length % 4)
    return False


def destroy(found: ConnectedSocket) -> bool:
    """Destroy a socket: its process gets ECONNABORTED. Return False when it is closed already.

    Raises OSError (EOPNOTSUPP: a kernel without CONFIG_INET_DIAG_DESTROY; EPERM).
    """
    with _open() as netlink:
        _send(netlink, _DESTROY, _REQUEST | _ACK, found, _ANY_STATE)
        try:
            list(_answers(netlink, dump=False))
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
    return True


def _open() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    netlink.settimeout(_TIMEOUT_S)
    return netlink


def _send(netlink: socket.socket, kind: int, flags: int, asked: ConnectedSocket, states: int) -> None:
    body = struct.pack("=BBBBI", asked.family, asked.protocol, 0, 0, states) + asked.ident  # struct inet_diag_req_v2
    netlink.send(struct.pack("=IHHII", _HEADER + len(body), kind, flags, 1, 0) + body)


def _answers(netlink: socket.socket, *, dump: bool) -> Iterator[bytes]:
    """Yield the bodies of a dump's messages; read the acknowledgement of anything else. Raises OSError of the kernel's errno."""
    while True:
        data, at = netlink.recv(1 << 17), 0
        while at + _HEADER <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == _ERROR:
                number = -struct.unpack_from("=i", data, at + _HEADER)[0]
                if number:
                    raise OSError(number, "sock_diag")
                return
            if kind == _DONE:
                return
            yield data[at + _HEADER : at + length]
            at += length + (-length % 4)
        if not dump:
            return
