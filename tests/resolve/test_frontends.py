"""Which frontends a Service has on a node: addresses, ports, kinds, in the order of fresh ids."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lbagent.model.address import L4Type
from lbagent.model.family import Family
from lbagent.objects.records import Service, ServicePort
from lbagent.resolve.frontends import LocalNode, WantedFrontend, beyond_share, node_addresses, wanted_frontends

VIP, VIP6 = bytes((10, 96, 0, 1)), b"\xfd" + bytes(14) + b"\1"
NODE4, NODE6 = bytes((192, 0, 2, 1)), b"\xfd\1" + bytes(13) + b"\1"
NODE = LocalNode("n1", (NODE4, NODE6))
HTTP = ServicePort("http", L4Type.TCP, 80, 30080, 0)
DNS = ServicePort("dns", L4Type.UDP, 53, 0, 1)


def service(**more: Any) -> Service:
    given: dict[str, Any] = {"families": (Family.IPV4,), "ports": (HTTP, DNS)} | more
    return Service("shop", "web", **given)


def texts(found: list[WantedFrontend]) -> list[str]:
    return [f"{want.type} {want.frontend.with_protocol()}" for want in found]


def test_a_cluster_ip_has_a_row_for_each_port_and_one_for_the_others() -> None:
    found = wanted_frontends(service(cluster_ips=(VIP, VIP6), ports=(DNS,)), NODE)
    assert texts(found) == [
        "ClusterIP 10.96.0.1:53/UDP",
        "ClusterIP 10.96.0.1:0/NONE",
        "ClusterIP [fd00::1]:53/UDP",
        "ClusterIP [fd00::1]:0/NONE",
    ]
    assert [want.is_wildcard for want in found] == [False, True, False, True]
    assert [want.is_routable for want in found] == [False] * 4
    assert [want.field[-1] for want in found] == [0, 0, 1, 1]


def test_a_node_port_is_on_the_surrogate_and_on_the_nodes_addresses_of_its_families() -> None:
    found = wanted_frontends(service(), NODE)
    assert texts(found) == ["NodePort 0.0.0.0:30080/TCP", "NodePort 192.0.2.1:30080/TCP"]
    assert [(want.surrogate, want.is_routable, want.is_wildcard) for want in found] == [
        (True, False, False),
        (False, True, False),
    ]
    assert texts(wanted_frontends(service(families=(Family.IPV6,)), NODE)) == [
        "NodePort [::]:30080/TCP",
        "NodePort [fd01::1]:30080/TCP",
    ]
    assert wanted_frontends(service(ports=(DNS,)), NODE) == []
    assert list(node_addresses([Family.IPV4], (NODE6,))) == [(bytes(4), True)]


def test_addresses_from_outside_are_routable() -> None:
    found = wanted_frontends(service(ingress=(VIP,), external_ips=(VIP6, NODE4), ports=(DNS,)), NODE)
    assert texts(found) == [
        "LoadBalancer 10.96.0.1:53/UDP",
        "ExternalIPs [fd00::1]:53/UDP",
        "ExternalIPs 192.0.2.1:53/UDP",
    ]
    assert [want.is_routable for want in found] == [True] * 3
    assert [want.field for want in found] == [
        ("status", "loadBalancer", "ingress"), ("spec", "externalIPs", 0), ("spec", "externalIPs", 1),
    ]  # fmt: skip


def test_an_address_that_is_given_twice_is_of_the_first_kind() -> None:
    found = wanted_frontends(service(cluster_ips=(VIP,), ingress=(VIP,), external_ips=(VIP,), ports=(DNS,)), NODE)
    assert texts(found) == ["ClusterIP 10.96.0.1:53/UDP", "ClusterIP 10.96.0.1:0/NONE"]


def test_a_service_of_another_proxy_has_none() -> None:
    assert wanted_frontends(service(cluster_ips=(VIP,), ignored="headless"), NODE) == []


def test_a_service_has_a_share_of_frontends() -> None:
    """ClusterIPs, NodePorts, ingress, externalIPs, in this order; wildcard rows do not count, nor does an address twice."""
    many = service(cluster_ips=(VIP,), ingress=(NODE6, VIP), external_ips=(VIP, NODE4, VIP6))
    whole = wanted_frontends(many, NODE)
    assert len(whole) == 11, (
        "two of the ClusterIP and one for its other ports, two NodePorts, two of the ingress, four of externalIPs"
    )
    assert beyond_share(many, NODE) is None
    for most in (1, 2, 3, 7, 9):
        node = replace(NODE, max_frontends=most)
        found = wanted_frontends(many, node)
        counted = [want for want in whole if not want.is_wildcard]
        assert [want for want in found if not want.is_wildcard] == counted[:most]
        first, number = beyond_share(many, node) or (None, 0)
        assert first == counted[most]
        assert number >= len(counted) - most
    assert beyond_share(many, replace(NODE, max_frontends=10)) is None


def test_a_service_of_many_addresses_is_cut_without_a_look_at_them_all() -> None:
    """65,000 addresses with 1,000 ports: 65 million frontends."""
    ports = tuple(ServicePort(str(number), L4Type.TCP, number, 0, number) for number in range(1, 1001))
    addresses = tuple(bytes((172, 16, number >> 8, number & 255)) for number in range(65_000))
    huge = service(ports=ports, external_ips=addresses)
    found = wanted_frontends(huge, NODE)
    assert len(found) == 4096
    first, number = beyond_share(huge, NODE) or (None, 0)
    assert (str(first and first.frontend), number) == ("172.16.0.4:97", 65_000_000 - 4096)
