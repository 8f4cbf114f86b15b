"""Joins the solicited-node groups of announced IPv6 addresses, so that switches with MLD snooping forward solicitations.

The kernel reports the membership to such switches, and answers their queries, while the sockets exist: they end with the agent.
Source: RFC 4291 §2.7.1, RFC 4861 §7.2.1; ipv6(7); the kernel (behaviour).
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections.abc import Collection

from lbagent.model.address import format_ip
from lbagent.net.solicited_node import solicited_node
from lbagent.targets.data_plane import DeviceAddress

log = logging.getLogger(__name__)
FULL = (errno.ENOMEM, errno.ENOBUFS)  # net.core.optmem_max holds some hundred memberships a socket
GOING = (errno.ENODEV, errno.ENXIO, errno.EADDRNOTAVAIL)  # of a device without IPv6, or one that is being removed
Group = tuple[int, bytes]  # ifindex, address of the group


class SolicitedGroups:
    """Owns the memberships."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._joined: dict[Group, socket.socket] = {}
        self._said = ""  # the failure that was logged last

    def use(self, places: Collection[DeviceAddress]) -> None:
        """Join the groups of these addresses, by device, and leave all others. Raises nothing; failures are logged."""
        wanted = {(ifindex, solicited_node(address)) for ifindex, address in places if len(address) == 16}
        for group in self._joined.keys() - wanted:
            _tell(self._joined.pop(group), socket.IPV6_LEAVE_GROUP, group)
        failure = ""
        for group in wanted - self._joined.keys():
            failure = self._join(group) or failure
        if failure and failure != self._said:
            log.warning("a switch with MLD snooping may drop solicitations for an address", extra={"error": failure})
        self._said = failure

    def close(self) -> None:
        """End all memberships."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        self._joined.clear()

    def _join(self, group: Group) -> str:
        """Join a group, with a socket that has room; return the failure, '' for none and for a device that needs no membership."""
        error = errno.ENOMEM
        for sock in reversed(self._sockets):
            error = _tell(sock, socket.IPV6_JOIN_GROUP, group)
            if error not in FULL:
                break
        try:
            if error in FULL:
                sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._sockets.append(sock)
                error = _tell(sock, socket.IPV6_JOIN_GROUP, group)
        except OSError as failure:  # a machine without IPv6
            error = failure.errno or errno.EIO
        if not error:
            self._joined[group] = sock
        elif error not in (*GOING, errno.EAFNOSUPPORT):
            return f"group {format_ip(group[1])}: {errno.errorcode.get(error, error)}"
        return ""


def _tell(sock: socket.socket, option: int, group: Group) -> int:
    """Join or leave a group; return the errno, 0 when it is done."""
    ifindex, address = group
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, option, address + struct.pack("@I", ifindex))
    except OSError as error:
        return error.errno or errno.EIO
    return 0
