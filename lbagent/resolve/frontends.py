"""The frontends of a Service: addresses, ports, kinds. ownership.py decides which Service gets a contested one.

Order, and so the order of fresh ids: ClusterIP, NodePort (surrogate first, then the node's addresses), LoadBalancer, externalIPs,
binds; inside each by address, then by port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.exclusion import Exclusion, exclusion_of
from lbagent.model.family import Family
from lbagent.model.service import CIDR, SVCType, is_in_any
from lbagent.objects.records import Service, ServicePort
from lbagent.textfile.field_path import FieldPath

UNSPECIFIED = {family: family.unspecified for family in Family}


MAX_FRONTENDS_PER_SERVICE = 4096  # there are 65,535 service ids for all of them


class LocalNode(Struct, frozen=True, gc=False):
    """The node that resolve works for. `zone` '' = unknown: zone hints are unused."""

    name: str = ""
    addresses: tuple[bytes, ...] = ()
    zone: str = ""
    node_port_addresses: tuple[bytes, ...] | None = None  # --nodeport-addresses; None = all of `addresses`
    external_ips: bool = True  # whether externalIPs are served here
    external_ip_ranges: tuple[CIDR, ...] = ()  # only those in one of them; () = all
    host_addresses: tuple[bytes, ...] = ()  # every address of the host that can be a frontend, for `Service.binds`
    max_frontends: int = MAX_FRONTENDS_PER_SERVICE  # addresses with port and protocol per Service
    local_endpoint_weight: int = 1  # how many times the share of another one an endpoint of this node has
    no_vip_checks: str = ""  # why health checks through a Service go directly to its backends
    no_passive_checks: str = ""  # why flows tell nothing of backends
    contiv_policies: bool = False  # externalTrafficPolicy Local holds for ClusterIPs, too
    exclusions: tuple[Exclusion, ...] = ()  # frontends that are left alone


class WantedFrontend(Struct, frozen=True, gc=False):
    """A frontend that an object requests. `field` is its place in the object; a wildcard entry has no port."""

    frontend: L3n4Addr
    type: SVCType
    field: FieldPath
    port: ServicePort | None = None
    surrogate: bool = False  # 0.0.0.0 or [::], for look-ups on the node itself
    loopback: bool = False  # an address that only processes of the node itself can use

    @property
    def is_wildcard(self) -> bool:
        """Whether it is the entry that rejects undefined ports of a ClusterIP."""
        return self.port is None

    @property
    def is_routable(self) -> bool:
        """Whether sources outside the cluster may reach it."""
        return not (self.surrogate or self.loopback) and self.type is not SVCType.CLUSTER_IP


def wanted_frontends(service: Service, node: LocalNode) -> list[WantedFrontend]:
    """Return the frontends of a Service on this node, each (address, port, protocol) once, with the wildcard entries.

    They are the first `max_frontends` in their order, not counting the wildcard entries. Those that are excluded are not among
    them, nor the wildcard entry of an address with an excluded port: it would refuse that port.
    """
    return _within_share(service, node)[0]


def beyond_share(service: Service, node: LocalNode) -> tuple[WantedFrontend, int] | None:
    """Return the first frontend that is left out because the Service has too many, and the maximum number of such frontends."""
    found, first = _within_share(service, node)
    if first is None:
        return None
    ports = len(service.ports)
    per_port = len(service.cluster_ips) + len(service.ingress) + sum(1 for _ in _served_external_ips(service, node))
    places = sum(len(node.host_addresses) + 1 if bind in UNSPECIFIED.values() else 1 for bind in service.binds)
    total = (
        (per_port + places) * ports + per_port * len(service.port_ranges) + sum(1 for _ in _node_ports(service, node))
    )
    return first, total - sum(not want.is_wildcard for want in found)


def _within_share(service: Service, node: LocalNode) -> tuple[list[WantedFrontend], WantedFrontend | None]:
    found: dict[L3n4Addr, WantedFrontend] = {}
    wildcards = 0
    for want in () if service.ignored or service.excluded else _all(service, node):
        if want.frontend in found or (node.exclusions and exclusion_of(want.frontend, node.exclusions)):
            continue
        if want.is_wildcard:
            wildcards += 1
        elif len(found) - wildcards >= node.max_frontends:
            return list(found.values()), want
        found[want.frontend] = want
    return list(found.values()), None


def excluded_frontends(service: Service, node: LocalNode) -> Iterator[tuple[L3n4Addr, str]]:
    """Yield the frontends of a Service that are left alone, and by what. A wildcard entry is not named."""
    if service.ignored or not (service.excluded or node.exclusions):
        return
    for want in _all(service, node):
        if want.is_wildcard or want.surrogate:
            continue
        if service.excluded:
            yield want.frontend, "lbagent.io/exclude"
        elif by := exclusion_of(want.frontend, node.exclusions):
            yield want.frontend, f"--exclude {by}"


def _all(service: Service, node: LocalNode) -> Iterator[WantedFrontend]:
    for index, address in enumerate(service.cluster_ips):
        field: FieldPath = ("spec", "clusterIPs", index)
        for port in _ports_of(service):
            yield WantedFrontend(_frontend(address, port), SVCType.CLUSTER_IP, field, port)
        yield WantedFrontend(L3n4Addr(address, 0, L4Type.NONE), SVCType.CLUSTER_IP, field)
    yield from _node_ports(service, node)
    for address in service.ingress:
        for port in _ports_of(service):
            frontend = _frontend(address, port)
            yield WantedFrontend(frontend, SVCType.LOAD_BALANCER, ("status", "loadBalancer", "ingress"), port)
    for index, address in _served_external_ips(service, node):
        for port in _ports_of(service):
            frontend = _frontend(address, port)
            yield WantedFrontend(frontend, SVCType.EXTERNAL_IPS, ("spec", "externalIPs", index), port)
    for bind in service.binds:
        yield from _bound(bind, service.ports, node)


def _ports_of(service: Service) -> Iterator[ServicePort]:
    """Yield the ports of addresses of the Service, then its ranges of ports: node ports and bind addresses have none."""
    yield from service.ports
    yield from service.port_ranges


def _frontend(address: bytes, port: ServicePort) -> L3n4Addr:
    return L3n4Addr(address, port.port, port.protocol, last_port=port.last_port)


def _served_external_ips(service: Service, node: LocalNode) -> Iterator[tuple[int, bytes]]:
    for index, address in enumerate(service.external_ips if node.external_ips else ()):
        if is_in_any(address, node.external_ip_ranges):
            yield index, address


def _bound(bind: bytes, ports: Iterable[ServicePort], node: LocalNode) -> Iterator[WantedFrontend]:
    family = Family.of(bind)
    places = [(bind, False)] if bind != UNSPECIFIED[family] else node_addresses((family,), node.host_addresses)
    for address, surrogate in places:
        for port in ports:
            frontend = L3n4Addr(address, port.port, port.protocol)
            yield WantedFrontend(frontend, SVCType.HOST_PORT, ("bindAddress",), port, surrogate, is_loopback(address))


def is_loopback(address: bytes) -> bool:
    """Return whether it is one of 127.0.0.0/8, or ::1."""
    return address[0] == 127 if len(address) == 4 else address == _LOOPBACK6


_LOOPBACK6 = bytes(15) + b"\x01"


def _node_ports(service: Service, node: LocalNode) -> Iterator[WantedFrontend]:
    ports = [port for port in service.ports if port.node_port]
    addresses = node.addresses if node.node_port_addresses is None else node.node_port_addresses
    for address, surrogate in node_addresses(service.families, addresses):
        for port in ports:
            frontend = L3n4Addr(address, port.node_port, port.protocol)
            yield WantedFrontend(
                frontend, SVCType.NODE_PORT, ("spec", "ports", port.index, "nodePort"), port, surrogate
            )


def node_addresses(families: Iterable[Family], addresses: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Iterate over (address, is surrogate) that a NodePort or HostPort of these families listens on."""
    for family in families:
        yield UNSPECIFIED[family], True
        for address in addresses:
            if Family.of(address) == family:
                yield address, False
