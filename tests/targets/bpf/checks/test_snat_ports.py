"""doctor and source addresses: which one the node lacks, which backends are short of ports, and which address would help."""

from __future__ import annotations

from types import SimpleNamespace as Some

import pytest

from lbagent.model.address import parse_ip
from lbagent.model.backend import Backend
from lbagent.model.check import Level
from lbagent.model.extra_snat_sources import ExtraSnatAddress
from lbagent.model.path_info import PathInfo
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.checks import snat_ports
from lbagent.targets.bpf.checks.node_context import ShortBackend
from lbagent.targets.bpf.checks.snat_checks import CHECKS, short_of_ports, snat_address_missing
from lbagent.targets.bpf.plan import plan
from tests.net.builders import ADDRESSES, ETH0, address, network
from tests.targets.bpf.plans import SMALL, Node
from tests.targets.bpf.plans import backend as make
from tests.targets.bpf.plans import service as frontend

PORTS_SHORT, ADDRESS_MISSING = CHECKS
STRIDE = SMALL.backends // 5
FOUR, SIX, POD = make("10.0.0.7:8080"), make("[2001:db8::9]:53/UDP"), make("10.244.0.5:8080")
FIRST = {4: parse_ip("10.0.0.1"), 6: parse_ip("fd00::1")}


def served(*extra_snat: str) -> Node:
    """Return a node with three backends (ids 1 to 3), the last one a pod of its own."""

    def way(item: Backend) -> PathInfo:
        family = item.address.family
        others = [ExtraSnatAddress(number, parse_ip(text)) for number, text in enumerate(extra_snat, 1)]
        mine = tuple(each for each in others if len(each.address) == family.address_bytes)
        return PathInfo(FIRST[family], 5, 1500, item.address == POD.address, extra_snat=mine)

    node = Node()
    node.want(frontend("10.96.0.1:80", FOUR), frontend("[fd00::1]:53/UDP", SIX), frontend("10.96.0.2:80", POD))
    assert apply(plan(node.state, node.shadow, way, ()), node.maps, node.shadow).complete
    return node


def hold(node: Node, half: int, **flows: int) -> None:
    """Say how many live flows the ids (`id1=5`) have."""
    with node.maps.window("lb_live", half * SMALL.backends * 4, SMALL.backends * 4) as view:
        for name, count in flows.items():
            at = int(name[2:]) * 4
            view[at : at + 4] = count.to_bytes(4, "little")


def short(node: Node, *lacking: str) -> list[ShortBackend]:
    """Return the backends that are short of 100 ports, on a node that has all addresses but these."""
    absent = {parse_ip(text) for text in lacking}
    return list(snat_ports.short_in_maps(node.maps, 100, lambda address: address not in absent))


@pytest.mark.parametrize("half", [0, 1])
def test_backends_that_hold_nearly_all_ports_are_short(half: int) -> None:
    node = served()
    hold(node, half, id1=90, id2=89, id3=500)
    hold(node, 1 - half, id1=3)
    (found,) = short(node)
    assert (found.name, found.flows, found.sources) == ("10.0.0.7:8080/TCP", 90, (FIRST[4],))
    hold(node, half, id2=90)
    assert [each.name for each in short(node)] == [
        "10.0.0.7:8080/TCP",
        "[2001:db8::9]:53/UDP",
    ]


def test_ports_and_flows_of_extra_snat_addresses_count() -> None:
    node = served("10.0.0.9", "fd00::5")
    hold(node, 0, id1=100, id2=100, **{f"id{1 + STRIDE}": 79, f"id{2 + 2 * STRIDE}": 90})
    (found,) = short(node)
    assert (found.name, found.flows) == ("[2001:db8::9]:53/UDP", 190)
    assert found.sources == (FIRST[6], parse_ip("fd00::5"))


def test_an_address_that_the_node_lacks_adds_no_ports() -> None:
    node = served("10.0.0.9")
    hold(node, 0, id1=95)
    assert short(node) == []
    (found,) = short(node, "10.0.0.9")
    assert found.sources == (FIRST[4],)


def said(node: Node, *more: str) -> list[str]:
    """Return the findings' texts for all short backends; `more` addresses are on eth0."""
    around = network(addresses=(*(address(text, ETH0) for text in more), *ADDRESSES))
    found = (PORTS_SHORT.finding(short_of_ports(each, 100, around)) for each in short(node))
    return [f"{each.text}; {each.remedy}" for each in found]


def test_an_address_of_the_device_that_would_help_is_named() -> None:
    node = served()
    hold(node, 0, id1=95, id2=95)
    four, six = said(node)
    assert four == (
        "backend 10.0.0.7:8080/TCP is short of SNAT ports: 95 flows, 100 ports; --snat-address 10.0.0.9 gives it 100 more:"
        " device eth0 has that address; or raise --snat-ports, or give the service more backends"
    )
    assert "add an address to device eth0 and to --snat-address, raise --snat-ports" in six
    assert "--snat-address fd00::7 gives it" in said(node, "fd00::7/64")[1]


def test_of_a_backend_with_all_addresses_no_extra_snat_address_is_named() -> None:
    node = served(*(f"10.0.0.{n}" for n in range(21, 25)))
    hold(node, 0, id1=460)
    (text,) = said(node)
    assert "460 flows, 100 ports with each of 5 source addresses; raise --snat-ports, or give" in text


def test_an_address_that_no_device_has_is_a_warning() -> None:
    context = Some(network=network(), snat_addresses=map(parse_ip, ["10.0.0.9", "10.0.0.99", "fd00::1"]))
    found = list(map(ADDRESS_MISSING.finding, snat_address_missing(context)))
    assert [(each.level, each.text) for each in found] == [
        (Level.OK, "--snat-address 10.0.0.9: device eth0 has it"),
        (Level.WARNING, "no device of this node has 10.0.0.99 (--snat-address): it is not used"),
        (Level.OK, "--snat-address fd00::1: device eth0 has it"),
    ]
