"""Longest prefix match against a slow, obvious one."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.net.routes import MAX_BLOCKS, Route, RouteTable, changed_prefixes, contains


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


def near(base: int, width: int) -> st.SearchStrategy[tuple[int, int]]:
    """(number, prefix length) close to a base, so that blocks are shared and divided."""
    return st.tuples(st.integers(base, base + 2 ** (width // 2 - 5)), st.integers(0, width))


@given(st.sampled_from([(32, 0x0A000000), (128, 0xFD << 120)]), st.data())
def test_addresses_of_one_block_each_take_their_own_route(family: tuple[int, int], data: st.DataObject) -> None:
    """Asked for one after the other, so that what is remembered of a block counts: /25 to /32 and /65 to /128 divide one."""
    width, base = family
    kind = ipaddress.IPv4Network if width == 32 else ipaddress.IPv6Network
    chosen = data.draw(st.lists(near(base, width), max_size=12))
    networks = list(dict.fromkeys(kind((number, bits), strict=False) for number, bits in chosen))
    table = RouteTable(Route(n.network_address.packed, n.prefixlen, i) for i, n in enumerate(networks))
    for number, _ in data.draw(st.lists(near(base, width), min_size=1, max_size=30)):
        address = networks[0].network_address.__class__(number) if networks else ipaddress.ip_address(number)
        covering = [(n.prefixlen, i) for i, n in enumerate(networks) if address in n]
        found = table.lookup(address.packed)
        assert (found.ifindex if found else None) == (max(covering)[1] if covering else None)


@pytest.mark.parametrize(("prefix", "inside", "beside"), [
    ("10.0.0.128/25", "10.0.0.129", "10.0.0.1"),
    ("10.0.0.7/32", "10.0.0.7", "10.0.0.8"),
    ("fd00::8000:0:0:0/65", "fd00::8000:0:0:1", "fd00::1"),
    ("fd00::7/128", "fd00::7", "fd00::8"),
])  # fmt: skip
def test_a_route_of_a_part_of_a_block(prefix: str, inside: str, beside: str) -> None:
    whole = "10.0.0.0/24" if "." in prefix else "fd00::/64"
    table = RouteTable([via(whole, 1), via(prefix, 2)])
    for _ in range(2):
        assert [table.lookup(ip(text)).ifindex for text in (beside, inside, beside)] == [1, 2, 1]  # type: ignore[union-attr]


def test_more_blocks_than_are_remembered() -> None:
    table = RouteTable([via("10.0.0.0/8", 1), via("10.200.0.0/16", 2)])
    for number in range(1 << 16):
        found = table.lookup(bytes((10, number >> 8, number & 255, 1)))
        assert found is not None
        assert found.ifindex == (2 if number >> 8 == 200 else 1)
    assert len(table._of_block) <= MAX_BLOCKS


@given(prefixes, st.integers(0, 2**32 - 1))
def test_contains(network: ipaddress.IPv4Network, number: int) -> None:
    address = ipaddress.ip_address(number)
    assert contains(network.network_address.packed, network.prefixlen, address.packed) == (address in network)


def test_changed_prefixes_names_added_removed_and_changed() -> None:
    old = RouteTable([via("10.0.0.0/8", 1), via("10.1.0.0/16", 1), via("10.2.0.0/16", 1)])
    new = RouteTable([via("10.0.0.0/8", 1), via("10.2.0.0/16", 2), via("10.3.0.0/16", 1)])
    assert changed_prefixes(old, new) == ((ip("10.1.0.0"), 16), (ip("10.2.0.0"), 16), (ip("10.3.0.0"), 16))
    assert changed_prefixes(old, old) == ()
