"""ResolvedService: a Service and its endpoints as one record, for renderers that work Service by Service.

It is made of the rows of a State. It leaves out rows that are not a Service's (the HostPort of a Pod) and rows without a port (the
wildcard row of a ClusterIP). Addresses are text. Source: the service model of contiv/vpp (behaviour).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type, format_ip
from lbagent.model.service import SVC, SVCTrafficPolicy, SVCType

_EXTERNAL = (SVCType.LOAD_BALANCER, SVCType.EXTERNAL_IPS)


class TrafficPolicy(StrEnum):
    """Which backends take traffic from outside the cluster."""

    CLUSTER_WIDE = "cluster-wide"
    NODE_LOCAL = "node-local"


class ServicePort(Struct, frozen=True, gc=False):
    """A port of a Service. `node_port` 0: none; `port` 0: no address of its own is served."""

    protocol: L4Type
    port: int = 0
    node_port: int = 0

    def __str__(self) -> str:
        """Return `80/TCP`, or `80:30080/TCP`."""
        ports = f"{self.port}:{self.node_port}" if self.node_port else str(self.port)
        return f"{ports}/{self.protocol}"


class ServiceBackend(Struct, frozen=True, gc=False):
    """A backend that takes new flows. `local`: on this node; `host_network`: its address is a node's."""

    ip: str
    port: int
    local: bool
    host_network: bool

    def __str__(self) -> str:
        """Return `<IP:10.0.0.1 Port:80, Local:true>`."""
        return f"<IP:{self.ip} Port:{self.port}, Local:{str(self.local).lower()}>"


class ResolvedService(Struct, frozen=True):
    """A Service with its endpoints; ports and backends by the name of the port."""

    id: str  # NAMESPACE/NAME
    traffic_policy: TrafficPolicy
    session_affinity_timeout_s: int  # 0: no affinity
    cluster_ips: tuple[str, ...]
    external_ips: tuple[str, ...]  # those of the balancer too
    ports: dict[str, ServicePort]
    backends: dict[str, tuple[ServiceBackend, ...]]

    @property
    def has_node_port(self) -> bool:
        """Whether any of its ports is a NodePort."""
        return any(port.node_port for port in self.ports.values())

    def without_node_ports(self) -> ResolvedService:
        """Return it as if it had none."""
        return replace(self, ports={name: replace(port, node_port=0) for name, port in self.ports.items()})


def resolved_service(name: str, rows: Iterable[SVC], addresses_of_nodes: Collection[bytes]) -> ResolvedService | None:
    """Return a Service of its rows; None where none of them is a Service's."""
    rows = [row for row in rows if not row.wildcard and row.type is not SVCType.HOST_PORT]
    if not rows:
        return None
    ports: dict[str, ServicePort] = {}
    backends: dict[str, dict[L3n4Addr, ServiceBackend]] = {}
    for row in rows:
        port = ports.get(row.port_name, ServicePort(row.frontend.protocol))
        key = "node_port" if row.type is SVCType.NODE_PORT else "port"
        ports[row.port_name] = replace(port, **{key: row.frontend.port})
        found = backends.setdefault(row.port_name, {})
        for backend in row.selectable:
            where = backend.address
            is_host = where.address in addresses_of_nodes
            found.setdefault(where, ServiceBackend(format_ip(where.address), where.port, backend.local, is_host))
    is_local = any(row.ext_traffic_policy is SVCTrafficPolicy.LOCAL for row in rows)
    return ResolvedService(
        name,
        TrafficPolicy.NODE_LOCAL if is_local else TrafficPolicy.CLUSTER_WIDE,
        max(row.affinity_timeout_s for row in rows),
        tuple(_addresses(row for row in rows if row.type is SVCType.CLUSTER_IP)),
        tuple(_addresses(row for row in rows if row.type in _EXTERNAL)),
        ports,
        {name: tuple(found.values()) for name, found in backends.items()},
    )


def _addresses(rows: Iterable[SVC]) -> Iterator[str]:
    """Yield the addresses of these rows, each once, in order."""
    yield from dict.fromkeys(format_ip(row.frontend.address) for row in rows)
