"""Arguments and results of a provider of load balancers: frozen records. Texts are in Kubernetes' form, ports in host order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

_NONE: Mapping[str, str] = MappingProxyType({})


class IngressPort(Struct, frozen=True, gc=False):
    """The state of a port of an ingress; `error` is '' for none. Source: core/v1 PortStatus."""

    port: int
    protocol: str = "TCP"
    error: str = ""


class Ingress(Struct, frozen=True, gc=False):
    """An address or a host name of a load balancer. `ip_mode` is `VIP`, `Proxy`, or '' for the server's default."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str = ""
    ports: tuple[IngressPort, ...] = ()


class LoadBalancerStatus(Struct, frozen=True, gc=False):
    """The addresses of a load balancer; `annotations` are written to the Service together with them."""

    ingress: tuple[Ingress, ...] = ()
    annotations: Mapping[str, str] = _NONE


class ServicePort(Struct, frozen=True, gc=False):
    """A port of a Service; `target_port` is a number or a port's name, 0 and '' mean none."""

    name: str = ""
    protocol: str = "TCP"
    port: int = 0
    node_port: int = 0
    target_port: int | str = 0
    app_protocol: str = ""


class Service(Struct, frozen=True, gc=False, kw_only=True):
    """A v1 Service. `session_affinity_s` is the time-out of ClientIP, 0 for none."""

    namespace: str
    name: str
    uid: str = ""
    type: str = "ClusterIP"
    annotations: Mapping[str, str] = _NONE
    labels: Mapping[str, str] = _NONE
    cluster_ips: tuple[str, ...] = ()
    ip_families: tuple[str, ...] = ()
    ports: tuple[ServicePort, ...] = ()
    load_balancer_ip: str = ""
    load_balancer_class: str = ""
    external_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    external_traffic_policy: str = ""
    health_check_node_port: int = 0
    session_affinity: str = "None"
    session_affinity_s: int = 0
    publish_not_ready_addresses: bool = False
    status: LoadBalancerStatus = LoadBalancerStatus()

    @property
    def key(self) -> str:
        """Namespace and name in one text."""
        return f"{self.namespace}/{self.name}"


class Node(Struct, frozen=True, gc=False, kw_only=True):
    """A v1 Node; `addresses` are pairs of type and address, `taints` the keys. `leaves`: it is being deleted."""

    name: str
    uid: str = ""
    annotations: Mapping[str, str] = _NONE
    labels: Mapping[str, str] = _NONE
    addresses: tuple[tuple[str, str], ...] = ()
    provider_id: str = ""
    pod_cidrs: tuple[str, ...] = ()
    unschedulable: bool = False
    ready: bool = False
    taints: tuple[str, ...] = ()
    leaves: bool = False


def same_ingress(one: LoadBalancerStatus, other: LoadBalancerStatus) -> bool:
    """Return whether two statuses have the same ingress. An address without a mode has the server's default, VIP (KEP-1860)."""
    return [_with_mode(each) for each in one.ingress] == [_with_mode(each) for each in other.ingress]


def _with_mode(ingress: Ingress) -> tuple[str, str, str, tuple[IngressPort, ...]]:
    mode = ingress.ip_mode or ("VIP" if ingress.ip else "")
    return ingress.ip, ingress.hostname, mode, ingress.ports
