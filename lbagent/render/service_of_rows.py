"""From the rows of a State to the Services that renderers get. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, format_ip
from lbagent.model.service import SVC, SVCTrafficPolicy, SVCType
from lbagent.render.renderer_types import (
    IPAddresses,
    ProtocolType,
    ResolvedService,
    ServiceBackend,
    ServicePort,
    TrafficPolicy,
)

POD_PREFIX = "pod:"  # of the id that the HostPorts of a Pod have
_EXTERNAL = (SVCType.LOAD_BALANCER, SVCType.EXTERNAL_IPS)


def resolved_service(name: str, rows: Iterable[SVC], addresses_of_nodes: Collection[bytes]) -> ResolvedService | None:
    """Return a Service of its rows; None where none of them is a Service's.

    It leaves out rows that are not a Service's (the HostPort of a Pod). Rows without a port (the wildcard row of a
    ClusterIP), those with a range of ports, and those of a local redirect, which only this node's pods and processes use, are in
    `svcs` alone.
    """
    svcs = tuple(row for row in rows if row.type is not SVCType.HOST_PORT)
    served = [row for row in svcs if not (row.wildcard or row.frontend.last_port or row.type is SVCType.LOCAL_REDIRECT)]
    if not served:
        return None
    ports: dict[str, ServicePort] = {}
    for row in served:
        port = ports.get(row.port_name, ServicePort(ProtocolType(row.frontend.protocol.number)))
        key = "node_port" if row.type is SVCType.NODE_PORT else "port"
        ports[row.port_name] = replace(port, **{key: row.frontend.port})
    is_local = any(row.ext_traffic_policy is SVCTrafficPolicy.LOCAL for row in served)
    return ResolvedService(
        name,
        TrafficPolicy.NODE_LOCAL if is_local else TrafficPolicy.CLUSTER_WIDE,
        max(row.affinity_timeout_s for row in served),
        IPAddresses.of_packed(row.frontend.address for row in served if row.type is SVCType.CLUSTER_IP),
        IPAddresses.of_packed(row.frontend.address for row in served if row.type in _EXTERNAL),
        ports,
        _backends(served, addresses_of_nodes),
        svcs,
    )


def host_ports_of_pod(name: str, rows: Iterable[SVC], addresses_of_nodes: Collection[bytes]) -> ResolvedService | None:
    """Return the HostPorts of a Pod as a Service that has only NodePorts; None where no row is one."""
    svcs = tuple(row for row in rows if row.type is SVCType.HOST_PORT)
    if not svcs:
        return None
    ports = {
        row.port_name: ServicePort(ProtocolType(row.frontend.protocol.number), node_port=row.frontend.port)
        for row in svcs
    }
    return ResolvedService(POD_PREFIX + name, ports=ports, backends=_backends(svcs, addresses_of_nodes), svcs=svcs)


def _backends(rows: Iterable[SVC], addresses_of_nodes: Collection[bytes]) -> dict[str, tuple[ServiceBackend, ...]]:
    """Return the backends that take new flows, each once, by the name of the port."""
    found: dict[str, dict[L3n4Addr, ServiceBackend]] = {}
    for row in rows:
        known = found.setdefault(row.port_name, {})
        for backend in row.selectable:
            where = backend.address
            if where not in known:
                is_host = where.address in addresses_of_nodes
                known[where] = ServiceBackend(format_ip(where.address), where.port, backend.local, is_host)
    return {name: tuple(known.values()) for name, known in found.items()}


def local_pod_addresses(service: ResolvedService) -> Iterator[str]:
    """Yield the addresses of its backends that are Pods of this node."""
    for backends in service.backends.values():
        for backend in backends:
            if backend.local and not backend.host_network:
                yield backend.ip
