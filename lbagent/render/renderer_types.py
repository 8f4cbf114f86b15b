"""The types of the renderer API: a Service with its endpoints as one record, without references to other objects.

Addresses are text, ports are numbers in host order. Every record is immutable: all renderers get the same objects.
Source: the service model of contiv/vpp (behaviour).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.address import format_ip, parse_ip
from lbagent.model.service import SVC

__all__ = [
    "Difference",
    "IPAddresses",
    "Interfaces",
    "ProtocolType",
    "ResolvedService",
    "ResyncEventData",
    "ServiceBackend",
    "ServicePort",
    "TrafficPolicy",
]

_INVALID = "INVALID"


class _Word(IntEnum):
    """A number with a word. A number outside the list keeps its value, and its word is INVALID."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = _INVALID, value
        return member

    @property
    def word(self) -> str:
        """The word of the JSON form."""
        return self.name

    @classmethod
    def of_word(cls, word: str) -> Self:
        """Return the member of a word. Raises ValueError."""
        for member in cls:
            if member.word == word:
                return member
        raise ValueError(f"{word!r} is none of {', '.join(member.word for member in cls)}")

    def __str__(self) -> str:
        """Return the word."""
        return self.word

    def __format__(self, spec: str) -> str:
        """Format the word, not the number."""
        return format(self.word, spec)


class ProtocolType(_Word):
    """A transport protocol by its number in the IP header. Source: IANA protocol numbers."""

    TCP = 6
    UDP = 17
    SCTP = 132


class TrafficPolicy(_Word):
    """Which backends take traffic from outside the cluster."""

    CLUSTER_WIDE = 0
    NODE_LOCAL = 1

    @property
    def word(self) -> str:
        """Return `cluster-wide` or `node-local`."""
        return self.name if self.name == _INVALID else self.name.lower().replace("_", "-")


class IPAddresses:
    """An immutable set of IP addresses that keeps their order. IPv4 and IPv4-mapped IPv6 are the same address.

    Members are texts in canonical form (`10.0.0.1`, `fd00::1`). Two sets are equal when they have the same members.
    """

    __slots__ = ("_members",)

    def __init__(self, *addresses: object) -> None:
        """Take texts or `ipaddress` objects; repeated ones count once. Raises ValueError."""
        self._members = dict.fromkeys(map(_canonical, addresses))

    @classmethod
    def of_packed(cls, addresses: Iterable[bytes]) -> Self:
        """Return the set of addresses of 4 or 16 bytes in network order."""
        made = cls()
        made._members = dict.fromkeys(map(format_ip, addresses))
        return made

    def copy(self) -> IPAddresses:
        """Return a set with the same members."""
        made = IPAddresses()
        made._members = dict(self._members)
        return made

    def has(self, address: object) -> bool:
        """Return whether the address is a member. Raises ValueError for a text that is no address."""
        return _canonical(address) in self._members

    def list(self) -> list[str]:
        """Return the members in order."""
        return [*self._members]

    def __contains__(self, address: object) -> bool:
        return self.has(address)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __eq__(self, other: object) -> bool:
        return self._members.keys() == other._members.keys() if isinstance(other, IPAddresses) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._members))

    def __str__(self) -> str:
        """Return `{10.0.0.1, fd00::1}`."""
        return _braced(self._members)

    def __repr__(self) -> str:
        return f"IPAddresses({', '.join(map(repr, self._members))})"


def _canonical(address: object) -> str:
    return format_ip(parse_ip(str(address)))


class Interfaces:
    """An immutable set of interface names. Two sets are equal when they have the same members."""

    __slots__ = ("_names",)

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def copy(self) -> Interfaces:
        """Return a set with the same members."""
        return Interfaces(*self._names)

    def has(self, name: str) -> bool:
        """Return whether the name is a member."""
        return name in self._names

    def list(self) -> list[str]:
        """Return the members, sorted."""
        return sorted(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def __eq__(self, other: object) -> bool:
        return self._names == other._names if isinstance(other, Interfaces) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._names)

    def __str__(self) -> str:
        """Return `{eth0, eth1}`."""
        return _braced(self)

    def __repr__(self) -> str:
        return f"Interfaces({', '.join(map(repr, self))})"


def _braced(members: Iterable[str]) -> str:
    return f"{{{', '.join(members)}}}"


class ServicePort(Struct, frozen=True, gc=False):
    """A port of a Service. `node_port` 0: none; `port` 0: no address of its own is served."""

    protocol: ProtocolType
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
    local: bool = False
    host_network: bool = False

    def __str__(self) -> str:
        """Return `<IP:10.0.0.1 Port:80, Local:true>`."""
        return f"<IP:{self.ip} Port:{self.port}, Local:{str(self.local).lower()}>"


class ResolvedService(Struct, frozen=True, eq=False):
    """A Service with its endpoints; ports and backends by the name of the port.

    `svcs` are the rows of the State behind it, without ids: scopes, backend states, weights, source ranges, affinity, and what
    a frontend without backends does. They are not in the JSON form. `==` compares the other fields.
    """

    id: str  # NAMESPACE/NAME
    traffic_policy: TrafficPolicy = TrafficPolicy.CLUSTER_WIDE
    session_affinity_timeout_s: int = 0  # 0: no affinity
    cluster_ips: IPAddresses = IPAddresses()
    external_ips: IPAddresses = IPAddresses()
    ports: dict[str, ServicePort] = {}
    backends: dict[str, tuple[ServiceBackend, ...]] = {}
    svcs: tuple[SVC, ...] = ()

    def has_node_port(self) -> bool:
        """Return whether any of its ports is a NodePort."""
        return any(port.node_port for port in self.ports.values())

    def without_node_ports(self) -> ResolvedService:
        """Return it as if it had none; `svcs` are empty."""
        ports = {name: replace(port, node_port=0) for name, port in self.ports.items()}
        return replace(self, ports=ports, svcs=())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "id": self.id,
            "traffic_policy": self.traffic_policy.word,
            "session_affinity_timeout_s": self.session_affinity_timeout_s,
            "cluster_ips": self.cluster_ips.list(),
            "external_ips": self.external_ips.list(),
            "ports": {
                name: {"protocol": port.protocol.word, "port": port.port, "node_port": port.node_port}
                for name, port in self.ports.items()
            },
            "backends": {
                name: [
                    {"ip": each.ip, "port": each.port, "local": each.local, "host_network": each.host_network}
                    for each in found
                ]
                for name, found in self.backends.items()
            },
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> ResolvedService:
        """Return the Service of a JSON form; it has no `svcs`. Raises KeyError, TypeError, ValueError."""
        return cls(
            form["id"],
            TrafficPolicy.of_word(form["traffic_policy"]),
            form["session_affinity_timeout_s"],
            IPAddresses(*form["cluster_ips"]),
            IPAddresses(*form["external_ips"]),
            {
                name: ServicePort(ProtocolType.of_word(port["protocol"]), port["port"], port["node_port"])
                for name, port in form["ports"].items()
            },
            {name: tuple(ServiceBackend(**each) for each in found) for name, found in form["backends"].items()},
        )

    def _fields(self) -> tuple[object, ...]:
        return (
            self.id,
            self.traffic_policy,
            self.session_affinity_timeout_s,
            self.cluster_ips,
            self.external_ips,
            self.ports,
            self.backends,
        )

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, ResolvedService) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        """Return one line: the policy, the addresses, and the backends of each port."""
        backends = ", ".join(
            f"{self.ports[name]}->[{', '.join(map(str, found))}]"
            for name, found in self.backends.items()
            if name in self.ports
        )
        cluster, external = ", ".join(self.cluster_ips), ", ".join(self.external_ips)
        return (
            f"ResolvedService {self.id} <Traffic-Policy:{self.traffic_policy} ClusterIPs:[{cluster}] "
            f"ExternalIPs:[{external}] Backends:{{{backends}}}>"
        )


class ResyncEventData(Struct, frozen=True):
    """Everything that a renderer makes true.

    `node_ips` are the addresses of this node that NodePorts have; of all nodes for a renderer with the capability `needs_nodes`.
    """

    node_ips: IPAddresses = IPAddresses()
    services: tuple[ResolvedService, ...] = ()
    frontend_ifs: Interfaces = Interfaces()
    backend_ifs: Interfaces = Interfaces()

    def __str__(self) -> str:
        """Return one line."""
        services = ", ".join(map(str, self.services))
        return (
            f"ResyncEventData <NodeIPs:{self.node_ips} Services:[{services}], "
            f"FrontendIfs:{self.frontend_ifs} BackendIfs:{self.backend_ifs}>"
        )


class Difference(Struct, frozen=True):
    """One thing in which a data plane is not what it must be.

    `service` is NAMESPACE/NAME and `frontend` an address like `10.96.0.1:80/TCP`; both are None for what belongs to no Service.
    """

    kind: str  # missing, stale or differs
    detail: str
    service: str | None = None
    frontend: str | None = None

    def __str__(self) -> str:
        """Return `NAMESPACE/NAME FRONTEND: KIND: DETAIL`."""
        subject = " ".join(part for part in (self.service, self.frontend) if part)
        return ": ".join(part for part in (subject, self.kind, self.detail) if part)
