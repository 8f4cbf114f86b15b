"""Which backends are on this node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lbagent.model.address import parse_ip
from lbagent.net.routes import Route, RouteTable
from lbagent.net.snapshot import EMPTY, Link, NodeAddress
from lbagent.targets.nftables.node_place import NodePlace
from tests.targets.nftables.made import backend

PODS = Route(parse_ip("10.244.0.0"), 24, 7)
OUT = Route(parse_ip("0.0.0.0"), 0, 2, gateway=parse_ip("192.0.2.254"))
NETWORK = replace(
    EMPTY,
    links={
        2: Link(2, "eth0", b"", 1500, True),
        7: Link(7, "cni0", b"", 1500, True),
        8: Link(8, "veth1", b"", 1500, True),
    },
    addresses=(NodeAddress(parse_ip("192.0.2.1"), 24, 2),),
    routes4=RouteTable([PODS, OUT]),
    own4=RouteTable([Route(parse_ip("192.0.2.1"), 32, 1)]),
)


@pytest.mark.parametrize(
    ("address", "node", "local"),
    [
        ("192.0.2.1:80", "there", True),  # the node's own address
        ("10.244.0.9:80", "", True),  # its route leaves by a pod device
        ("10.244.0.9:80", "there", False),  # the name decides
        ("10.1.1.1:80", "here", True),
        ("10.1.1.1:80", "", False),
    ],
)
def test_where_a_backend_is(address: str, node: str, local: bool) -> None:
    place = NodePlace("here", ("cni*",), NETWORK)
    assert place.is_local(replace(backend(address), node_name=node)) is local


def test_devices_that_nft_cannot_match_by_pattern() -> None:
    assert list(NodePlace("here", ("cni*", "veth?"), NETWORK).devices) == ["veth1"]
    assert list(NodePlace("here", ("cni*", "veth1"), NETWORK).devices) == []


def test_what_changes_answers_changes_the_signature() -> None:
    place = NodePlace("here", ("cni*",), NETWORK)
    assert place.signature == NodePlace("here", ("cni*",), replace(NETWORK, links=dict(NETWORK.links))).signature
    other = replace(NETWORK, addresses=(*NETWORK.addresses, NodeAddress(parse_ip("192.0.2.7"), 24, 2)))
    assert place.signature != NodePlace("here", ("cni*",), other).signature
    assert place.signature != NodePlace("here", ("cni*",), replace(NETWORK, routes4=RouteTable([OUT]))).signature
