"""Connected UDP sockets and TCP sockets: found by their cookies in one network namespace, ended with an error for their process."""

from __future__ import annotations

import socket
import struct

import pytest

from lbagent.kernel import sock_diag
from lbagent.model.address import parse_ip
from tests.lab.netns import Namespace

pytestmark = [pytest.mark.root, pytest.mark.bpf]
SO_COOKIE = 57
ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


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


@pytest.mark.parametrize(
    ("family", "address", "shown"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_tcp_connection_is_found_by_its_peer_s_port_and_ended(netns, family, address, shown):
    with (
        socket.create_server((ANY[family], 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as listener,
        socket.create_server((ANY[family], 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as another,
        socket.socket(family, socket.SOCK_STREAM) as sock,
        socket.socket(family, socket.SOCK_STREAM) as stays,
    ):
        sock.connect((address, listener.getsockname()[1]))
        stays.connect((address, another.getsockname()[1]))
        port = listener.getsockname()[1]
        (found,) = sock_diag.tcp_connections_to(port)
        assert found.cookie == cookie_of(sock)
        assert found.peer == (parse_ip(shown), port)
        assert found.local == (parse_ip(shown), sock.getsockname()[1])
        assert sock_diag.destroy(found)
        sock.settimeout(5)
        with pytest.raises(ConnectionAbortedError):
            sock.recv(10)
        assert sock_diag.tcp_connections_to(port) == []
        assert not sock_diag.destroy(found)
        assert len(sock_diag.tcp_connections_to(another.getsockname()[1])) == 1


def test_a_connection_that_is_not_made_yet_is_found(netns):
    netns.ip("addr add 10.0.0.1/24 dev v0", "neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev v0 nud permanent")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        sock.connect_ex(("10.0.0.9", 6443))
        (found,) = sock_diag.tcp_connections_to(6443)
        assert sock_diag.destroy(found)
        assert sock_diag.tcp_connections_to(6443) == []


def test_listeners_say_where_and_whether_they_have_ipv4(netns):
    with (
        socket.create_server(("127.0.0.1", 7001)),
        socket.create_server(("::", 7002), family=socket.AF_INET6, dualstack_ipv6=False),
        socket.create_server(("::", 7003), family=socket.AF_INET6, dualstack_ipv6=True),
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound,
    ):
        bound.bind(("127.0.0.1", 7004))
        found = {each.local[1]: (each.local[0], each.v6only) for each in sock_diag.tcp_listeners()}
        assert found == {7001: (parse_ip("127.0.0.1"), False), 7002: (bytes(16), True), 7003: (bytes(16), False)}
