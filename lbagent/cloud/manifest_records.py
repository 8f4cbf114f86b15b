"""Converts decoded manifests to records for providers (pure): `cloud plan` passes them to the rules that `cloud run` uses."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from lbagent.cloud.provider_api.provider_records import Ingress, LoadBalancerStatus, Node, Service, ServicePort
from lbagent.model.address import format_ip
from lbagent.objects import records

UNKNOWN_UID = "<uid>"  # in the name of a balancer whose manifest has no UID
BalancerName = Callable[[Service], str]


def service_record(raw: records.Service) -> Service:
    """Return the record of a Service with fields for a provider."""
    balancer = raw.balancer
    assert balancer is not None
    return Service(
        namespace=raw.namespace,
        name=raw.name,
        uid=balancer.uid,
        type=raw.type,
        annotations=balancer.annotations,
        labels=balancer.labels,
        cluster_ips=tuple(map(format_ip, raw.cluster_ips)),
        ip_families=tuple(f"IPv{family}" for family in balancer.families),
        ports=tuple(
            ServicePort(port.name, port.protocol, port.port, port.node_port, port.target_port)
            for port in balancer.ports
        ),
        load_balancer_ip=balancer.load_balancer_ip,
        load_balancer_class=balancer.load_balancer_class,
        external_ips=tuple(map(format_ip, raw.external_ips)),
        source_ranges=balancer.source_ranges,
        external_traffic_policy="Local" if raw.external_local else "Cluster",
        health_check_node_port=raw.health_check_node_port,
        session_affinity=balancer.session_affinity,
        session_affinity_s=raw.affinity_timeout_s,
        publish_not_ready_addresses=balancer.publish_not_ready,
        status=LoadBalancerStatus(tuple(Ingress(ip=format_ip(each)) for each in balancer.status)),
    )


def node_record(raw: records.Node) -> Node:
    """Return the record of a Node; its addresses are the InternalIPs."""
    return Node(
        name=raw.name,
        labels=raw.labels,
        addresses=tuple(("InternalIP", format_ip(each)) for each in raw.internal_ips),
        unschedulable=raw.cordoned,
        ready=raw.ready,
        leaves=raw.leaves,
    )


def planned_name(name: BalancerName, service: Service) -> str:
    """Return the balancer's name at a provider; a UID that the manifest lacks is `<uid>` in it."""
    return name(service if service.uid else replace(service, uid=UNKNOWN_UID))
