"""The controller's Services and Nodes: the record that pools and plans read, with the one that providers get."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, field

from lbagent.cloud.provider_api import provider_records as records
from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.objects.decode.decode_balancer import CLEANUP
from lbagent.objects.records import KubeObject, Node, Service

KINDS = ("Service", "Node")


class WatchedService(Service, frozen=True, gc=False):
    """A Service; `deleting`: it has a deletionTimestamp."""

    record: records.Service = records.Service(namespace="", name="")
    finalizer: bool = False
    deleting: bool = False


class WatchedNode(Node, frozen=True, gc=False):
    """A Node; `network` is status and reason of its condition NetworkUnavailable, '' without one."""

    record: records.Node = records.Node(name="")
    network: tuple[str, str] = ("", "")


class _Meta(Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: str | None = None


class _Port(Struct, rename="camel", gc=False):
    name: str = ""
    protocol: str = "TCP"
    port: int = 0
    node_port: int = 0
    target_port: int | str = 0
    app_protocol: str | None = None


class _ClientIP(Struct, rename="camel", gc=False):
    timeout_seconds: int | None = None


class _Affinity(Struct, gc=False):
    client_ip: _ClientIP | None = field(name="clientIP", default=None)


class _ServiceSpec(Struct, rename="camel", gc=False):
    type: str = "ClusterIP"
    cluster_ips: list[str] | None = field(name="clusterIPs", default=None)
    ip_families: list[str] | None = None
    ports: list[_Port] | None = None
    load_balancer_ip: str = field(name="loadBalancerIP", default="")
    load_balancer_class: str | None = None
    load_balancer_source_ranges: list[str] | None = None
    external_ips: list[str] | None = field(name="externalIPs", default=None)
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    session_affinity: str = "None"
    session_affinity_config: _Affinity | None = None
    publish_not_ready_addresses: bool = False


class _IngressPort(Struct, gc=False):
    port: int = 0
    protocol: str = "TCP"
    error: str | None = None


class _Ingress(Struct, rename="camel", gc=False):
    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None
    ports: list[_IngressPort] | None = None


class _Balancer(Struct, gc=False):
    ingress: list[_Ingress] | None = None


class _ServiceStatus(Struct, rename="camel", gc=False):
    load_balancer: _Balancer | None = None


class _Service(Struct, gc=False):
    metadata: _Meta
    spec: _ServiceSpec = field(default_factory=_ServiceSpec)
    status: _ServiceStatus | None = None


class _Taint(Struct, gc=False):
    key: str = ""


class _NodeSpec(Struct, gc=False):
    provider_id: str = field(name="providerID", default="")
    pod_cidrs: list[str] | None = field(name="podCIDRs", default=None)
    unschedulable: bool = False
    taints: list[_Taint] | None = None


class _Address(Struct, gc=False):
    type: str = ""
    address: str = ""


class _Condition(Struct, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""


class _NodeStatus(Struct, gc=False):
    addresses: list[_Address] | None = None
    conditions: list[_Condition] | None = None


class _Node(Struct, gc=False):
    metadata: _Meta
    spec: _NodeSpec = field(default_factory=_NodeSpec)
    status: _NodeStatus | None = None


_SERVICE = msgspec.json.Decoder(_Service)
_NODE = msgspec.json.Decoder(_Node)


def watched(obj: KubeObject | None, raw: msgspec.Raw | bytes) -> KubeObject | None:
    """Return the record of a decoded Service or Node and its JSON; None if the JSON is invalid."""
    try:
        if isinstance(obj, Service):
            return _watched_service(obj, _SERVICE.decode(raw))
        if isinstance(obj, Node):
            node = _NODE.decode(raw)
            return WatchedNode(**_fields(obj), record=_node_record(node), network=_network(node))
    except DECODING_ERRORS:
        return None
    return None


def _watched_service(obj: Service, raw: _Service) -> WatchedService:
    meta = raw.metadata
    finalizer = CLEANUP in (meta.finalizers or ())
    return WatchedService(
        **_fields(obj), record=service_record(raw), finalizer=finalizer, deleting=bool(meta.deletion_timestamp)
    )


def _fields(obj: Struct) -> dict[str, Any]:
    return {name: getattr(obj, name) for name in obj.__struct_fields__}


def service_record(raw: _Service) -> records.Service:
    """Return the record that providers get."""
    meta, spec = raw.metadata, raw.spec
    client = spec.session_affinity_config.client_ip if spec.session_affinity_config else None
    return records.Service(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        type=spec.type,
        annotations=_frozen(meta.annotations),
        labels=_frozen(meta.labels),
        cluster_ips=tuple(spec.cluster_ips or ()),
        ip_families=tuple(spec.ip_families or ()),
        ports=tuple(_port(port) for port in spec.ports or ()),
        load_balancer_ip=spec.load_balancer_ip,
        load_balancer_class=spec.load_balancer_class or "",
        external_ips=tuple(spec.external_ips or ()),
        source_ranges=tuple(spec.load_balancer_source_ranges or ()),
        external_traffic_policy=spec.external_traffic_policy,
        health_check_node_port=spec.health_check_node_port,
        session_affinity=spec.session_affinity,
        session_affinity_s=(client.timeout_seconds or 0) if client else 0,
        publish_not_ready_addresses=spec.publish_not_ready_addresses,
        status=_status(raw.status),
    )


def _port(port: _Port) -> records.ServicePort:
    return records.ServicePort(
        port.name, port.protocol, port.port, port.node_port, port.target_port, port.app_protocol or ""
    )


def _status(raw: _ServiceStatus | None) -> records.LoadBalancerStatus:
    entries = raw.load_balancer.ingress if raw and raw.load_balancer else None
    return records.LoadBalancerStatus(tuple(_ingress(each) for each in entries or ()))


def _ingress(raw: _Ingress) -> records.Ingress:
    ports = tuple(records.IngressPort(port.port, port.protocol, port.error or "") for port in raw.ports or ())
    return records.Ingress(raw.ip, raw.hostname, raw.ip_mode or "", ports)


def _node_record(raw: _Node) -> records.Node:
    meta, status = raw.metadata, raw.status or _NodeStatus()
    return records.Node(
        name=meta.name,
        uid=meta.uid,
        annotations=_frozen(meta.annotations),
        labels=_frozen(meta.labels),
        addresses=tuple((each.type, each.address) for each in status.addresses or ()),
        provider_id=raw.spec.provider_id,
        pod_cidrs=tuple(raw.spec.pod_cidrs or ()),
        unschedulable=raw.spec.unschedulable,
        ready=any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        taints=tuple(taint.key for taint in raw.spec.taints or ()),
        leaves=bool(meta.deletion_timestamp),
    )


def _network(raw: _Node) -> tuple[str, str]:
    conditions = (raw.status.conditions if raw.status else None) or ()
    return next(((each.status, each.reason) for each in conditions if each.type == "NetworkUnavailable"), ("", ""))


def _frozen(texts: dict[str, str] | None) -> Mapping[str, str]:
    return MappingProxyType(texts or {})
