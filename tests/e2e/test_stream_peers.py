"""The frontend that a TCP connection of the node has as its peer address, when slots of sockets are reused."""

from __future__ import annotations

import contextlib
import socket

import pytest

from lbagent.maps.layout import STREAMS
from tests.e2e.cluster import VIP4, VIP6, Cluster
from tests.lab import traffic

BACKENDS = {VIP4: ("10.77.1.2", "10.77.2.2", "10.244.0.2"), VIP6: ("fd77:1::2", "fd77:2::2", "fd44::2")}
SO_COOKIE = 57  # Source: include/uapi/asm-generic/socket.h
FAMILIES = {VIP4: socket.AF_INET, VIP6: socket.AF_INET6}
vips = pytest.mark.parametrize("vip", FAMILIES)


@pytest.fixture(scope="module")
def cluster(socket_cluster: Cluster) -> Cluster:
    return socket_cluster


def cookie(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), "little")


def socket_at_the_place_of(other: int, family: int) -> socket.socket:
    """Return a new socket with the slot of another one: cookies are consecutive, and each CPU has its own range."""
    for _ in range(STREAMS * 100):
        sock = socket.socket(family, socket.SOCK_STREAM)
        if (cookie(sock) - other) % STREAMS == 0:
            return sock
        sock.close()
    raise AssertionError("no socket has this place")


@vips
def test_the_place_of_an_old_connection_is_another_ones(inside: Cluster, vip: str) -> None:
    """The older one returns its backend, and never the frontend of the younger one."""
    with traffic.connect(vip, 80) as old:
        assert old.getpeername()[:2] == (vip, 80)
        with socket_at_the_place_of(cookie(old), FAMILIES[vip]) as young:
            assert old.getpeername()[:2] == (vip, 80)  # a socket without a frontend takes no slot
            young.connect((vip, 80))
            assert young.getpeername()[:2] == (vip, 80)
            assert old.getpeername()[0] in BACKENDS[vip]
            assert traffic.request(old)
            assert traffic.request(young)


@vips
def test_what_a_socket_left_is_not_shown_to_the_next_one(inside: Cluster, vip: str) -> None:
    with contextlib.closing(traffic.connect(vip, 80)) as sock:
        place = cookie(sock)
    for address in BACKENDS[vip]:  # the first one's was among them
        with socket_at_the_place_of(place, FAMILIES[vip]) as sock:
            sock.settimeout(5)
            sock.connect((address, 8080))
            assert sock.getpeername()[0] == address
