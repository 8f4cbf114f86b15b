"""Longest prefix match against a slow, obvious one."""

from __future__ import annotations

import ipaddress
import socket

from hypothesis import given
from hypothesis import strategies as st

from lbagent.net.routes import Route, RouteTable, changed_prefixes, contains


def ip(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def via(prefix: str, ifindex: int, gateway: str = "", **more: object) -> Route:
    network = ipaddress.ip_network(prefix)
    return Route(network.network_address.packed, network.prefixlen, ifindex, ip(gateway) if gateway else b"", **more)  # type: ignore[arg-type]


def test_the_longest_prefix_wins_then_the_lowest_metric() -> None:
    table = RouteTable(
        [via("0.0.0.0/0", 1, metric=100), via("0.0.0.0/0", 2, metric=50), via("10.0.0.0/8", 3), via("10.1.0.0/16", 4)]
    )
    assert table.lookup(ip("10.1.2.3")).ifindex == 4  # type: ignore[union-attr]
    assert table.lookup(ip("10.2.2.3")).ifindex == 3  # type: ignore[union-attr]
    assert table.lookup(ip("192.0.2.1")).ifindex == 2  # type: ignore[union-attr]


def test_no_route() -> None:
    assert RouteTable([via("fd00::/64", 1)]).lookup(ip("fd01::1")) is None


def test_the_devices_of_all_default_routes() -> None:
    """Also of those that are not the best one, and of every next hop of one; no route that refuses."""
    routes = [
        via("0.0.0.0/0", 1),
        via("0.0.0.0/0", 2, metric=100),
        via("0.0.0.0/0", 3, metric=50, others=((4, b""), (5, b""))),
        via("0.0.0.0/0", 6, metric=9, unicast=False),
        via("10.0.0.0/8", 7),
    ]
    assert RouteTable(routes).default_devices == {1, 2, 3, 4, 5}


def test_two_routes_of_one_prefix_and_metric_leave_the_output_open() -> None:
    table = RouteTable([via("fd00::/64", 1, "fe80::1", metric=5), via("fd00::/64", 1, "fe80::2", metric=5)])
    found = table.lookup(ip("fd00::1"))
    assert found is not None
    assert not found.simple


prefixes = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)).map(
    lambda p: ipaddress.ip_network((p[0], p[1]), strict=False)
)


@given(st.lists(prefixes, max_size=20, unique=True), st.integers(0, 2**32 - 1))
def test_as_the_obvious_search(networks: list[ipaddress.IPv4Network], number: int) -> None:
    address = ipaddress.ip_address(number)
    table = RouteTable(Route(n.network_address.packed, n.prefixlen, i) for i, n in enumerate(networks))
    covering = [(n.prefixlen, i) for i, n in enumerate(networks) if address in n]
    found = table.lookup(address.packed)
    assert (found.ifindex if found else None) == (max(covering)[1] if covering else None)


@given(prefixes, st.integers(0, 2**32 - 1))
def test_contains(network: ipaddress.IPv4Network, number: int) -> None:
    address = ipaddress.ip_address(number)
    assert contains(network.network_address.packed, network.prefixlen, address.packed) == (address in network)


def test_changed_prefixes_names_added_removed_and_changed() -> None:
    old = RouteTable([via("10.0.0.0/8", 1), via("10.1.0.0/16", 1), via("10.2.0.0/16", 1)])
    new = RouteTable([via("10.0.0.0/8", 1), via("10.2.0.0/16", 2), via("10.3.0.0/16", 1)])
    assert changed_prefixes(old, new) == ((ip("10.1.0.0"), 16), (ip("10.2.0.0"), 16), (ip("10.3.0.0"), 16))
    assert changed_prefixes(old, old) == ()
