"""The rules that providers share: which changes count, which nodes, which clients."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.cloud.provider import (
    IngressPort,
    LoadBalancerStatus,
    Node,
    Service,
    ServicePort,
    default_load_balancer_name,
    health_check,
    needs_update,
    node_included,
    same_ingress,
    source_ranges,
)
from lbagent.cloud.provider_api.provider_records import Ingress
from lbagent.objects.decode.decode_pod import EXCLUDED, TO_BE_DELETED
from lbagent.objects.decode.source_ranges import ANNOTATION as RANGES_ANNOTATION

HTTP = ServicePort("http", "TCP", 80, 30080, 8080, "http")
DNS = ServicePort("dns", "UDP", 53, 30053, "dns")
WEB = Service(
    namespace="shop", name="web", uid="1b4e28ba-2fa1-11d2-883f-0016d3cca427", type="LoadBalancer", ports=(HTTP, DNS),
    annotations={"a": "1"}, labels={"app": "web"}, cluster_ips=("10.96.0.1",), ip_families=("IPv4",),
    external_ips=("192.0.2.1", "192.0.2.2"), source_ranges=("198.51.100.0/24",), external_traffic_policy="Cluster",
)  # fmt: skip


def test_nothing_changed() -> None:
    assert not needs_update(WEB, replace(WEB))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"type": "ClusterIP"}, True),
        ({"load_balancer_class": "x/y"}, True),
        ({"source_ranges": ("198.51.100.0/25",)}, True),
        ({"ports": (HTTP,)}, True),
        ({"ports": (DNS, HTTP)}, True),
        ({"ports": (replace(HTTP, name="web"), DNS)}, True),
        ({"ports": (replace(HTTP, protocol="UDP"), DNS)}, True),
        ({"ports": (replace(HTTP, port=81), DNS)}, True),
        ({"ports": (replace(HTTP, node_port=30081), DNS)}, True),
        ({"ports": (replace(HTTP, target_port="http"), DNS)}, True),
        ({"ports": (replace(HTTP, app_protocol="h2c"), DNS)}, True),
        ({"session_affinity": "ClientIP"}, True),
        ({"session_affinity_s": 60}, True),
        ({"load_balancer_ip": "192.0.2.9"}, True),
        ({"external_ips": ("192.0.2.2", "192.0.2.1")}, True),
        ({"external_ips": ("192.0.2.1",)}, True),
        ({"annotations": {"a": "1", "b": "2"}}, True),
        ({"uid": "other"}, True),
        ({"external_traffic_policy": "Local"}, True),
        ({"health_check_node_port": 30000}, True),
        ({"ip_families": ("IPv4", "IPv6")}, True),
        ({"ip_families": ("IPv6",)}, False),
        ({"labels": {"app": "other"}}, False),
        ({"cluster_ips": ("10.96.0.2",)}, False),
        ({"status": LoadBalancerStatus((Ingress(ip="192.0.2.5"),))}, False),
        ({"publish_not_ready_addresses": True}, False),
    ],
)
def test_which_changes_count(change: dict[str, Any], expected: bool) -> None:
    assert needs_update(WEB, replace(WEB, **change)) is expected


@pytest.mark.parametrize(
    ("node", "included"),
    [
        ({}, True),
        ({"ready": False}, True),
        ({"unschedulable": True}, True),
        ({"labels": {EXCLUDED: ""}}, False),
        ({"labels": {EXCLUDED: "true"}}, False),
        ({"labels": {EXCLUDED: "no"}}, False),
        ({"labels": {EXCLUDED: "false"}}, True),
        ({"labels": {EXCLUDED: "0"}}, True),
        ({"taints": (TO_BE_DELETED,)}, False),
        ({"taints": ("node.kubernetes.io/not-ready",)}, True),
        ({"leaves": True}, False),
    ],
)
def test_which_nodes_are_included(node: dict[str, Any], included: bool) -> None:
    assert node_included(Node(name="n1", **node)) is included


def test_ranges_of_the_spec_then_of_the_annotation_then_everybody() -> None:
    bare = replace(WEB, source_ranges=())
    noted = replace(bare, annotations={RANGES_ANNOTATION: " 192.0.2.0/24 , 10.0.0.0/8,192.0.2.0/24 "})
    assert source_ranges(bare) == ("0.0.0.0/0",)
    assert source_ranges(noted) == ("192.0.2.0/24", "10.0.0.0/8")
    assert source_ranges(replace(noted, source_ranges=("2001:db8::/32",))) == ("2001:db8::/32",)
    assert source_ranges(replace(bare, ip_families=("IPv6", "IPv4"))) == ("::/0", "0.0.0.0/0")
    assert source_ranges(replace(bare, source_ranges=("10.1.2.3/8", "10.0.0.0/8"))) == ("10.0.0.0/8",)
    for wrong, named in (
        ("192.0.2.1", "'192.0.2.1'"),
        ("192.0.2.0/33", "'192.0.2.0/33'"),
        ("x, 10.0.0.0/8, y", "'x'.*'y'"),
        ("192.0.2.0/24,,10.0.0.0/8", "''"),
    ):
        with pytest.raises(ValueError, match=f"^{RANGES_ANNOTATION}: .*{named}"):
            source_ranges(replace(bare, annotations={RANGES_ANNOTATION: wrong}))
    with pytest.raises(ValueError, match="^spec.loadBalancerSourceRanges: 'x'"):
        source_ranges(replace(noted, source_ranges=("x",)))


def test_health_check_only_of_a_local_balancer_with_a_port() -> None:
    local = replace(WEB, external_traffic_policy="Local", health_check_node_port=30123)
    assert health_check(local) == ("/healthz", 30123)
    assert health_check(WEB) == ("", 0)
    assert health_check(replace(local, type="NodePort")) == ("", 0)
    assert health_check(replace(local, health_check_node_port=0)) == ("", 0)


def test_the_default_name() -> None:
    assert default_load_balancer_name(WEB) == "a1b4e28ba2fa111d2883f0016d3cca42"


def test_an_address_without_a_mode_is_a_vip() -> None:
    def status(**entry: Any) -> LoadBalancerStatus:
        return LoadBalancerStatus((Ingress(**entry),))

    assert same_ingress(status(ip="192.0.2.1"), status(ip="192.0.2.1", ip_mode="VIP"))
    assert not same_ingress(status(ip="192.0.2.1"), status(ip="192.0.2.1", ip_mode="Proxy"))
    assert not same_ingress(status(ip="192.0.2.1"), status(ip="192.0.2.1", ports=(IngressPort(80),)))
    assert not same_ingress(status(hostname="a"), status(hostname="b"))
