"""The types of the renderer API: sets, words, JSON forms."""

from __future__ import annotations

import json
from ipaddress import ip_address

import pytest

from lbagent.model.address import L3n4Addr
from lbagent.model.service import SVC
from lbagent.render import (
    Difference,
    Interfaces,
    IPAddresses,
    ProtocolType,
    ResolvedService,
    ResyncEventData,
    ServiceBackend,
    ServicePort,
    TrafficPolicy,
)

WEB = ResolvedService(
    "t/web",
    TrafficPolicy.NODE_LOCAL,
    10800,
    IPAddresses("10.96.0.1"),
    IPAddresses("192.0.2.7", "2001:db8::7"),
    {"http": ServicePort(ProtocolType.TCP, 80, 30080), "": ServicePort(ProtocolType.SCTP, 9)},
    {"http": (ServiceBackend("10.1.0.5", 8080, local=True), ServiceBackend("10.0.0.2", 8080, host_network=True))},
)
JSON = {
    "id": "t/web",
    "traffic_policy": "node-local",
    "session_affinity_timeout_s": 10800,
    "cluster_ips": ["10.96.0.1"],
    "external_ips": ["192.0.2.7", "2001:db8::7"],
    "ports": {
        "http": {"protocol": "TCP", "port": 80, "node_port": 30080},
        "": {"protocol": "SCTP", "port": 9, "node_port": 0},
    },
    "backends": {
        "http": [
            {"ip": "10.1.0.5", "port": 8080, "local": True, "host_network": False},
            {"ip": "10.0.0.2", "port": 8080, "local": False, "host_network": True},
        ]
    },
}


def test_the_numbers_and_words_of_protocols_and_policies() -> None:
    assert [(kind.value, str(kind)) for kind in ProtocolType] == [(6, "TCP"), (17, "UDP"), (132, "SCTP")]
    assert [(each.value, f"{each}") for each in TrafficPolicy] == [(0, "cluster-wide"), (1, "node-local")]
    assert (str(ProtocolType(1)), str(TrafficPolicy(2)), ProtocolType(1) == 1) == ("INVALID", "INVALID", True)
    assert ProtocolType(6) is ProtocolType.TCP
    with pytest.raises(ValueError):
        ProtocolType("TCP")


def test_a_set_of_addresses_keeps_its_order_and_compares_by_value() -> None:
    found = IPAddresses("10.0.0.2", ip_address("10.0.0.1"), "::ffff:10.0.0.2", "2001:DB8::1")
    assert found.list() == ["10.0.0.2", "10.0.0.1", "2001:db8::1"]
    assert found.has("::ffff:10.0.0.1")
    assert not found.has("10.0.0.3")
    assert found == IPAddresses(*reversed(found.list())) == found.copy()
    assert found.copy() is not found
    assert str(found) == "{10.0.0.2, 10.0.0.1, 2001:db8::1}"
    assert IPAddresses.of_packed([bytes([10, 0, 0, 2])]) == IPAddresses("10.0.0.2") != IPAddresses()
    with pytest.raises(ValueError):
        IPAddresses("nowhere")


def test_a_set_of_interfaces() -> None:
    found = Interfaces("eth1", "eth0", "eth1")
    assert (found.list(), found.has("eth0"), "eth2" in found, len(found)) == (["eth0", "eth1"], True, False, 2)
    assert found.copy() == found != Interfaces()
    assert str(found) == "{eth0, eth1}"


def test_the_json_form_holds_everything() -> None:
    assert WEB.to_json() == JSON
    assert ResolvedService.from_json(json.loads(json.dumps(JSON))) == WEB
    with pytest.raises(ValueError, match="'icmp' is none of TCP, UDP, SCTP"):
        ResolvedService.from_json(JSON | {"ports": {"": {"protocol": "icmp", "port": 1, "node_port": 0}}})


def test_the_rows_do_not_count_as_a_difference() -> None:
    row = SVC(L3n4Addr(bytes(4), 80))
    with_rows = ResolvedService("t/web", svcs=(row,))
    assert with_rows == ResolvedService("t/web")
    assert with_rows != ResolvedService("t/api")
    assert with_rows.svcs == (row,)


def test_node_ports() -> None:
    assert WEB.has_node_port()
    assert not WEB.without_node_ports().has_node_port()
    assert not ResolvedService("t/none").has_node_port()


def test_the_texts() -> None:
    assert [str(port) for port in WEB.ports.values()] == ["80:30080/TCP", "9/SCTP"]
    assert str(WEB.backends["http"][0]) == "<IP:10.1.0.5 Port:8080, Local:true>"
    assert str(WEB) == (
        "ResolvedService t/web <Traffic-Policy:node-local ClusterIPs:[10.96.0.1] ExternalIPs:[192.0.2.7, 2001:db8::7] "
        "Backends:{80:30080/TCP->[<IP:10.1.0.5 Port:8080, Local:true>, <IP:10.0.0.2 Port:8080, Local:false>]}>"
    )
    snapshot = ResyncEventData(IPAddresses("10.0.0.1"), (), Interfaces("eth0"))
    assert str(snapshot) == "ResyncEventData <NodeIPs:{10.0.0.1} Services:[], FrontendIfs:{eth0} BackendIfs:{}>"
    assert str(Difference("stale", "no Service has it", None, "10.96.0.1:80/TCP")) == (
        "10.96.0.1:80/TCP: stale: no Service has it"
    )
