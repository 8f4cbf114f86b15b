"""Rule A2, node IPs : nodePort: every InternalIP, the first of each family, or those in given ranges."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lbagent.agent import layer_settings
from lbagent.config import Config
from lbagent.model.address import L4Type, parse_ip
from lbagent.net.snapshot import EMPTY, NodeAddress
from lbagent.objects.records import HostPort, Node, ObjectChange, Pod, Service, ServicePort
from lbagent.resolve import Resolver
from lbagent.resolve.resolver import Resolution
from tests.objects.kinds import kind_of

INTERNAL = ("192.0.2.1", "198.51.100.1", "2001:db8::1", "2001:db8::2")
NETWORK = (*INTERNAL, "127.0.0.1", "10.9.0.1", "10.9.0.2", "fe80::1")


def resolved(*words: str, internal: tuple[str, ...] = INTERNAL) -> Resolution:
    addresses = tuple(NodeAddress(parse_ip(text), 24, 2) for text in NETWORK)
    config = Config(node_name="n1", nodeport_addresses=words)
    resolver = Resolver(layer_settings.resolve_options(config, replace(EMPTY, addresses=addresses)))
    port = ServicePort("http", L4Type.TCP, 80, 30080)
    objects = (
        Node("n1", internal_ips=tuple(map(parse_ip, internal))),
        Service("d", "web", type="NodePort", families=(4, 6), ports=(port,)),
        Pod("d", "p", node="n1", ips=(parse_ip("10.244.0.1"),), host_ports=(HostPort(7000, 80, L4Type.TCP),)),
    )
    resolver.update([ObjectChange(kind_of(obj), obj.key, None, obj) for obj in objects])
    return resolver.resolve()


def node_ports(resolution: Resolution, port: int = 30080) -> list[str]:
    found = [svc.frontend.ip for svc in resolution.state.services if svc.frontend.port == port]
    return [text for text in found if text not in ("0.0.0.0", "::")]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), INTERNAL),
        (("primary",), ("192.0.2.1", "2001:db8::1")),
        (("10.9.0.0/24",), ("10.9.0.1", "10.9.0.2")),
        (("10.9.0.2/32", "2001:db8::/127"), ("10.9.0.2", "2001:db8::1")),
        (("0.0.0.0/0",), ("10.9.0.1", "10.9.0.2", "192.0.2.1", "198.51.100.1")),
        (("127.0.0.0/8", "fe80::/10"), ()),
    ],
)
def test_a2_addresses_of_node_ports(words: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    resolution = resolved(*words)
    assert sorted(node_ports(resolution)) == sorted(wanted)
    assert bool(resolution.messages) == (not wanted)
    assert node_ports(resolution, 7000) == ["192.0.2.1", "198.51.100.1"], "a HostPort is on every address"


def test_a2_external_ips_may_be_switched_off() -> None:
    web = Service(
        "d", "web", families=(4,), external_ips=(parse_ip("203.0.113.1"),), ports=(ServicePort("", L4Type.TCP, 80),)
    )
    for given, wanted in ((True, ["203.0.113.1:80"]), (False, [])):
        resolver = Resolver(layer_settings.resolve_options(Config(external_ips=given)))
        resolver.update([ObjectChange("Service", "d/web", None, web)])
        resolution = resolver.resolve()
        assert [str(svc.frontend) for svc in resolution.state.services] == wanted
        assert [message.field for message in resolution.messages] == ([] if given else ["spec.externalIPs"])


def test_a2_external_ips_outside_of_the_ranges_are_not_served_and_are_named() -> None:
    addresses = ("203.0.113.1", "198.51.100.7", "2001:db8::1", "2001:db8:1::1")
    port = ServicePort("", L4Type.TCP, 80)
    web = Service("d", "web", families=(4, 6), external_ips=tuple(map(parse_ip, addresses)), ports=(port,))
    given = ("203.0.113.0/24", "2001:db8::/48")
    resolver = Resolver(layer_settings.resolve_options(Config(external_ip_cidr=given)))
    resolver.update([ObjectChange("Service", "d/web", None, web)])
    resolution = resolver.resolve()
    assert [str(svc.frontend) for svc in resolution.state.services] == ["203.0.113.1:80", "[2001:db8::1]:80"]
    (message,) = resolution.messages
    assert message.warning
    assert str(message) == (
        "Service d/web: spec.externalIPs: 198.51.100.7, 2001:db8:1::1 are in no --external-ip-cidr; they have no frontend"
    )
    many = tuple(bytes((198, 51, 100, number)) for number in range(10))
    resolver.update([ObjectChange("Service", "d/web", web, replace(web, external_ips=many))])
    (message,) = resolver.resolve().messages
    assert message.problem.endswith("198.51.100.7 and 2 more are in no --external-ip-cidr")


def test_a2_what_is_said_when_no_address_is_left() -> None:
    (message,) = resolved("203.0.113.0/24").messages
    assert str(message).startswith("Node n1: none of its addresses is in --nodeport-addresses; NodePort")
    assert message.warning
    (message,) = resolved("primary", internal=()).messages
    assert "no address is known" in str(message)
