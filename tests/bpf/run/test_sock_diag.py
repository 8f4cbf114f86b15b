"""Connected UDP sockets: found by their cookies in one network namespace, ended so that their process hears of it."""

from __future__ import annotations

import socket
import struct

import pytest

from lbagent.bpf.run import sock_diag
from tests.lab.netns import Namespace

pytestmark = [pytest.mark.root, pytest.mark.bpf]
SO_COOKIE = 57


def cookie_of(sock: socket.socket) -> int:
    return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0])


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1")],
)
def test_a_connected_socket_is_found_and_ended(netns, family, address):
    with (
        socket.socket(family, socket.SOCK_DGRAM) as sock,
        socket.socket(family, socket.SOCK_DGRAM) as stays,
        socket.socket(family, socket.SOCK_DGRAM) as unconnected,
    ):
        sock.connect((address, 5353))
        stays.connect((address, 5353))
        unconnected.bind((address, 0))
        found = {item.cookie: item for item in sock_diag.connected_udp_sockets()}
        assert found.keys() == {cookie_of(sock), cookie_of(stays)}
        assert sock_diag.destroy(found[cookie_of(sock)])
        sock.settimeout(5)
        with pytest.raises(ConnectionAbortedError):
            sock.recv(10)
        assert not sock_diag.destroy(found[cookie_of(sock)])
        assert [item.cookie for item in sock_diag.connected_udp_sockets()] == [cookie_of(stays)]


def test_sockets_of_other_network_namespaces_are_not_seen(netns):
    other = Namespace("other")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", 5353))
            assert other.call(sock_diag.connected_udp_sockets) == []
    finally:
        other.delete()
