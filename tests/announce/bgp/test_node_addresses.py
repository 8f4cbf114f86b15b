"""The node's addresses towards a peer, and its router id."""

from __future__ import annotations

from lbagent.announce.bgp.node_addresses import choose_router_id, local_addresses
from lbagent.model.address import parse_ip
from lbagent.net.routes import Route, RouteTable
from lbagent.net.snapshot import NodeAddress, NodeNetwork

NONE = RouteTable(())


def network(*addresses: NodeAddress, routes4: tuple[Route, ...] = ()) -> NodeNetwork:
    return NodeNetwork({}, addresses, RouteTable(routes4), NONE, NONE, NONE, {})


def own(text: str, bits: int, device: int = 1, *, source: bool = True, deprecated: bool = False) -> NodeAddress:
    return NodeAddress(parse_ip(text), bits, device, source, deprecated)


def test_addresses_of_the_device_whose_network_has_the_peer() -> None:
    node = network(
        own("10.0.0.2", 8, 2), own("10.1.0.2", 24), own("fd01::2", 64), own("fd02::2", 64, 2), own("10.1.0.9", 32, 3)
    )
    assert local_addresses(node, parse_ip("10.1.0.1")) == (parse_ip("10.1.0.2"), parse_ip("fd01::2"))
    assert local_addresses(node, parse_ip("fd02::1")) == (parse_ip("10.0.0.2"), parse_ip("fd02::2"))
    assert local_addresses(node, parse_ip("192.0.2.1")) == (b"", b"")


def test_addresses_by_the_route_to_a_peer_further_away() -> None:
    default = Route(bytes(4), 0, 1, parse_ip("10.1.0.1"))
    node = network(own("10.1.0.2", 24), own("fd01::2", 64), routes4=(default,))
    assert local_addresses(node, parse_ip("192.0.2.1")) == (parse_ip("10.1.0.2"), parse_ip("fd01::2"))
    said = Route(bytes(4), 0, 1, parse_ip("10.1.0.1"), prefsrc=parse_ip("10.1.0.7"))
    assert local_addresses(network(own("10.1.0.2", 24), routes4=(said,)), parse_ip("192.0.2.1"))[0] == parse_ip(
        "10.1.0.7"
    )


def test_link_local_and_deprecated_addresses_are_no_next_hops() -> None:
    node = network(
        own("10.1.0.2", 24), own("fd00::2", 64, source=False), own("fd01::2", 64, deprecated=True), own("fd01::3", 64)
    )
    assert local_addresses(node, parse_ip("10.1.0.1"))[1] == parse_ip("fd01::3")


def test_the_router_id_stays_while_the_node_has_the_address() -> None:
    node = network(own("10.1.0.2", 24), own("10.0.0.5", 24, 2))
    first = choose_router_id("", node, "n", [b"", parse_ip("10.1.0.2")])
    assert first == parse_ip("10.1.0.2")
    assert choose_router_id("x\nrouter id 10.0.0.5;\n", node, "n", [parse_ip("10.1.0.2")]) == parse_ip("10.0.0.5")
    assert choose_router_id("router id 10.9.9.9;", node, "n", [parse_ip("10.1.0.2")]) == parse_ip("10.1.0.2")
    assert choose_router_id("", node, "n", []) == parse_ip("10.0.0.5")


def test_without_ipv4_the_router_id_is_made_from_the_name() -> None:
    node = network(own("fd01::2", 64))
    one, other = choose_router_id("", node, "a", []), choose_router_id("", node, "b", [])
    assert len(one) == 4
    assert any(one)
    assert one != other
    assert one == choose_router_id("", node, "a", [])
