"""A service frontend for the maps: SVC, and its small values."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from lbagent.model.address import L3n4Addr, format_ip, parse_ip
from lbagent.model.backend import Backend
from lbagent.model.flags import ServiceFlags
from lbagent.model.flow_rules import FlowRules
from lbagent.model.kinds import Algorithm, SVCNatPolicy, SVCTrafficPolicy, SVCType
from lbagent.model.stale_flows import stale_flows_text

__all__ = ["CIDR", "RESTORED", "SVC", "Algorithm", "SVCNatPolicy", "SVCTrafficPolicy", "SVCType", "ServiceName"]

MAX_SLOTS = 0xFFFF  # backends of a frontend: its slots, count and qcount are u16 in the maps
DEFAULT_AFFINITY_TIMEOUT_S = 10800  # Kubernetes' default of sessionAffinityConfig.clientIP.timeoutSeconds


class ServiceName(Struct, frozen=True, gc=False, order=True):
    """The full name of a Service object."""

    namespace: str
    name: str
    cluster: str = ""

    def __str__(self) -> str:
        """Return `[cluster/]namespace/name`."""
        text = f"{self.namespace}/{self.name}"
        return f"{self.cluster}/{text}" if self.cluster else text

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[cluster/]namespace/name`; a name alone is in `default`. Raises ValueError."""
        parts = text.split("/")
        if len(parts) > 3 or not all(parts):
            raise ValueError(f"{text!r} is not a service name like NAMESPACE/NAME")
        if len(parts) == 1:
            return cls("default", parts[0])
        return cls(parts[-2], parts[-1], parts[0] if len(parts) == 3 else "")


# The name of a frontend in the maps without an object: the maps have no names of Services. No object can have this name.
RESTORED = ServiceName("?", "restored")


class CIDR(Struct, frozen=True, gc=False):
    """An address range, host bits zero."""

    network: bytes
    bits: int

    def __str__(self) -> str:
        """Return `10.0.0.0/8`; IPv6 has no brackets."""
        return f"{format_ip(self.network)}/{self.bits}"

    @property
    def is_ipv6(self) -> bool:
        """Whether the range is IPv6."""
        return len(self.network) == 16

    @property
    def sort_key(self) -> tuple[int, bytes, int]:
        """Order by family, network, length."""
        return (len(self.network), self.network, self.bits)

    def contains(self, address: bytes) -> bool:
        """Return whether the address is of this family and in the range."""
        return len(address) == len(self.network) and mask(address, self.bits) == self.network

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ADDRESS/BITS` and mask the host bits; blanks around it do not count. Raises ValueError."""
        head, _, tail = text.strip().partition("/")
        address = parse_ip(head)
        width = len(address) * 8
        if not (tail.isascii() and tail.isdecimal() and len(tail) <= 3):
            raise ValueError(f"{text!r} is not a range like 10.0.0.0/8")
        bits = int(tail) - (96 if ":" in head and width == 32 else 0)  # an IPv4-mapped range counts from ::ffff:0:0/96
        if not 0 <= bits <= width:
            raise ValueError(f"{text!r} has a prefix length outside 0-{width}")
        return cls(mask(address, bits), bits)


def is_in_any(address: bytes, ranges: tuple[CIDR, ...]) -> bool:
    """Return whether an address is in one of the ranges; without ranges every address is."""
    return not ranges or any(cidr.contains(address) for cidr in ranges)


def mask(address: bytes, bits: int) -> bytes:
    """Return the address with all but its first `bits` bits zero."""
    host = len(address) * 8 - bits
    return (int.from_bytes(address, "big") >> host << host).to_bytes(len(address), "big")


class _Identified(Struct, frozen=True, gc=False):
    """The fields of an SVC that are allowed as positional arguments; all others need their names."""

    frontend: L3n4Addr
    id: int = 0
    name: ServiceName = ServiceName("", "")


class SVC(_Identified, frozen=True, gc=False, kw_only=True):
    """One frontend with everything that is written for it.

    `id` 0 means not yet assigned (a wildcard entry keeps 0). Backends are in slot order: `selectable` are the COUNT group,
    `unselectable` the QCOUNT group (terminating serving, terminating not serving, quarantined), `slotless` have a backend entry
    and no slot (maintenance, weight 0; in the agent also endpoints that exist and are filtered out).
    """

    port_name: str = ""
    type: SVCType = SVCType.CLUSTER_IP
    ext_traffic_policy: SVCTrafficPolicy = SVCTrafficPolicy.CLUSTER
    int_traffic_policy: SVCTrafficPolicy = SVCTrafficPolicy.CLUSTER
    nat_policy: SVCNatPolicy = SVCNatPolicy.NONE
    selectable: tuple[Backend, ...] = ()
    unselectable: tuple[Backend, ...] = ()
    slotless: tuple[Backend, ...] = ()
    algorithm: Algorithm = Algorithm.RANDOM
    session_affinity: bool = False
    session_affinity_timeout_s: int = 0
    source_ranges: tuple[CIDR, ...] = ()
    source_ranges_deny: bool = False
    check_source_range: bool = False  # also true when no range of this family is left: then no client gets in
    flags: ServiceFlags = ServiceFlags(0)
    l7_lb_proxy_port: int = 0
    l7_lb_frontend_ports: tuple[str, ...] = ()
    health_check_node_port: int = 0
    health_check_addresses: tuple[bytes, ...] = ()  # with that port: of local endpoints that are ready, sorted
    loopback_hostport: bool = False
    forwarding_dsr: bool = False
    flow_rules: FlowRules | None = None
    no_local_backend: bool = (
        False  # Local policy, no local endpoint, but the cluster has some: dropped, not rejected (A5)
    )
    stale_flows_s: int = 0  # for how long flows go on to a backend that is gone (model/stale_flows.py)
    ending: frozenset[L3n4Addr] = frozenset()  # backends whose flows end although those of others would go on
    wildcard: bool = False  # the ID=0, port 0, ANY entry of a ClusterIP address
    created: float = 0.0  # creationTimestamp of its object, 0 when there is none; negative: of the operator's own files

    @property
    def is_restored(self) -> bool:
        """Whether an earlier agent left it in the maps, and no object has it now."""
        return self.name == RESTORED

    @property
    def passes_untouched(self) -> bool:
        """Whether it is at an address of a local redirect, for what is not redirected: its packets pass as they are."""
        return self.type is SVCType.LOCAL_REDIRECT and self.loopback_hostport

    @property
    def backends(self) -> tuple[Backend, ...]:
        """All backends: slots in order, then those without a slot."""
        return self.selectable + self.unselectable + self.slotless

    @property
    def stale_flows(self) -> str:
        """What happens to flows whose backend is gone, as the annotation has it; '' for `reset`."""
        return stale_flows_text(self.stale_flows_s) if self.stale_flows_s else ""

    @property
    def affinity_timeout_s(self) -> int:
        """Seconds for which a client keeps its backend; 0 without affinity, 10800 by default."""
        if not self.session_affinity:
            return 0
        return self.session_affinity_timeout_s or DEFAULT_AFFINITY_TIMEOUT_S
