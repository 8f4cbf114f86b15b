"""The elements of one Service: from its rows of the State to sets and maps. Pure.

Source of the rules: docs/datapath.md, docs/renderers.md. Weights act with maglev and least-conn only, as everywhere; least-conn
chooses at random by weight, because the kernel's chains count no connections.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from math import gcd
from sys import intern

from msgspec import Struct

from lbagent.model import flow_rules
from lbagent.model.address import Scope
from lbagent.model.backend import Backend
from lbagent.model.family import Family
from lbagent.model.maglev import lookup_table
from lbagent.model.service import CIDR, SVC, Algorithm, SVCNatPolicy, SVCType
from lbagent.model.stale_flows import stale_flows_text
from lbagent.targets.nftables.chains import DROPPED, REFUSED, SKIP, Hashed, Need, Refusal, Sticky, Way
from lbagent.targets.nftables.map_specs import (
    INSIDE_OFFSET,
    Element,
    backend_value,
    frontend_key,
    range_key,
    slot_bytes,
)

IsLocal = Callable[[Backend], bool]  # whether a backend is on this node
COMMENT_BYTES = 127  # as nft's own
# Slots of a table by how many backends it has at most: enough for shares that are right within a percent or so.
_TABLES = ((64, 1021), (512, 4093), (4096, 16381))
_LARGEST = 65521
_MAX_WEIGHTED = 1024  # slots of a weighted frontend that is not hashed


class ServiceRules(Struct, frozen=True, gc=False):
    """What one Service adds: elements by map and key, the chains that they need, and the local backends that they name.

    `unsupported`: what of the Service is not served, one sentence each.
    """

    elements: dict[tuple[str, bytes], Element] = {}
    needs: frozenset[Need] = frozenset()
    local: frozenset[bytes] = frozenset()
    unsupported: tuple[str, ...] = ()


NO_RULES = ServiceRules()


def service_rules(rows: Iterable[SVC], is_local: IsLocal, *, as_text: bool = False) -> ServiceRules:
    """Return what the rows of one Service add; `as_text`: TableSettings.as_text."""
    return _Builder(is_local, as_text=as_text).build(rows)


def is_served(row: SVC) -> bool:
    """Whether a row stands for packets: 0.0.0.0 and loopback addresses are for sockets of the node."""
    address = row.frontend.address
    return any(address) and not _is_loopback(address)


def _is_loopback(address: bytes) -> bool:
    return address[0] == 127 if len(address) == 4 else address == bytes(15) + b"\1"


def unsupported(row: SVC) -> str:
    """Return why a row cannot be served by nftables; '' when it can."""
    if row.frontend.last_port:
        ports = row.frontend.port_text
        return (
            f"port-range {row.port_name}={ports}: nftables serves no ranges of ports; its port of spec.ports is served"
        )
    if row.nat_policy is not SVCNatPolicy.NONE:
        return f"{row.nat_policy.value.lower()}: nftables translates no packet to the other family; it is not served"
    if row.l7_lb_proxy_port:
        return "the L7 proxy gets no connections from nftables; they go to the backends"
    if row.loopback_hostport and not row.passes_untouched:
        return f"{row.frontend.with_protocol()} is not served: a loopback address is for sockets of this node"
    if row.stale_flows_s:
        word = stale_flows_text(row.stale_flows_s)
        return f"stale-flows {word}: nftables ends the connections of a backend as soon as it is gone"
    return ""


def unlimited(row: SVC) -> str:
    """Return which rules about new flows nftables does not follow; '' when it has none of them."""
    rules = row.flow_rules or flow_rules.NO_RULES
    words = {
        "max-flows": rules.max_flows,
        "max-flows-per-backend": rules.max_flows_per_backend,
        "new-flow-rate": rules.new_flow_rate,
        "slow-start": rules.slow_start_s,
    }
    given = [word for word, value in words.items() if value]
    return f"{', '.join(given)}: nftables counts no flows; new ones are not limited" if given else ""


def comment_of(row: SVC) -> str:
    """Return `NAMESPACE/NAME PORTNAME`, as long as nft takes."""
    name = f"{row.name} {row.port_name}" if row.port_name else str(row.name)
    return name.encode()[:COMMENT_BYTES].decode(errors="ignore").replace('"', "'")


class _Builder:
    def __init__(self, is_local: IsLocal, *, as_text: bool) -> None:
        self._is_local = is_local
        self._as_text = as_text
        self._elements: dict[tuple[str, bytes], Element] = {}
        self._needs: set[Need] = set()
        self._local: set[bytes] = set()
        self._unsupported: dict[str, None] = {}

    def build(self, rows: Iterable[SVC]) -> ServiceRules:
        outside: SVC | None = None
        for row in rows:
            if row.frontend.scope is Scope.INTERNAL and outside and _is_one_scope(outside, row):
                continue
            outside = row
            if row.wildcard:
                self._add(f"cluster_ips{row.frontend.family.digit}", row.frontend.address, None, str(row.name))
                continue
            if reason := unsupported(row):
                self._unsupported[reason] = None
            if reason := unlimited(row):
                self._unsupported[reason] = None
            has_frontend = is_served(row) and not row.passes_untouched and not row.frontend.last_port
            if has_frontend and row.nat_policy is SVCNatPolicy.NONE:
                self._frontend(row)
        return ServiceRules(self._elements, frozenset(self._needs), frozenset(self._local), tuple(self._unsupported))

    def _add(self, name: str, key: bytes, value: str | bytes | None = None, comment: str = "") -> None:
        self._elements[name, key] = Element(value, comment)

    def _frontend(self, row: SVC) -> None:
        family, digit = row.frontend.family, row.frontend.family.digit
        key = frontend_key(row.frontend.address, row.frontend.protocol, row.frontend.port)
        comment = comment_of(row)
        inside = row.frontend.scope is Scope.INTERNAL
        name = f"internal{digit}" if inside else f"frontends{digit}"
        backends = [each for each in row.selectable if each.address.family is family]
        check = _check_of(row)
        if not backends:
            self._without_backends(name, key, row, check)
            return
        slots, hashed = _slots(row, backends)
        sticky = row.session_affinity
        if sticky and self._as_text and family is Family.IPV6:
            sticky, hashed = False, "client"
        way = Way(family, len(slots), hashed, inside, sticky, check)
        self._needs.add(way)
        self._add(name, key, intern(f"goto {way.name}"), comment)
        self._slots(f"backends{digit}", key, slots, INSIDE_OFFSET if inside else 0)
        if row.type is not SVCType.CLUSTER_IP:
            self._add(f"external{digit}", key, None, comment)
        if check:
            self._ranges(key, row)
        if sticky:
            noted = Sticky(family, row.affinity_timeout_s)
            self._needs.add(noted)
            self._add(f"sticky{digit}", key, intern(f"jump {noted.name}"), comment)
        self._local.update(each.address.address for each in backends if self._is_local(each))

    def _without_backends(self, name: str, key: bytes, row: SVC, check: str) -> None:
        if row.no_local_backend and check != SKIP:
            way = DROPPED
        elif check:
            refusal = Refusal(row.frontend.family, check)
            self._needs.add(refusal)
            way = f"goto {refusal.name}"
            self._ranges(key, row)
        else:
            way = REFUSED
        self._add(name, key, way, comment_of(row))

    def _ranges(self, key: bytes, row: SVC) -> None:
        for first, last in _disjoint(row.source_ranges):
            self._add(f"ranges{row.frontend.family.digit}", range_key(key, first, last), None, comment_of(row))

    def _slots(self, name: str, key: bytes, slots: Sequence[Backend], offset: int) -> None:
        values = {each.address: Element(backend_value(each.address.address, each.address.port)) for each in slots}
        for number, each in enumerate(slots, offset):
            self._elements[name, key + slot_bytes(number)] = values[each.address]


def _check_of(row: SVC) -> str:
    """Return what happens by the client's address: the word of the chain. A local redirect is skipped by its own pods."""
    if not row.check_source_range:
        return ""
    if row.type is SVCType.LOCAL_REDIRECT:
        return SKIP
    return "deny" if row.source_ranges_deny else "allow"


def _is_one_scope(outside: SVC, inside: SVC) -> bool:
    """Return whether the row for pods and the node adds nothing to that before it: the agent keeps it for flows of bpf."""
    return (
        outside.frontend.with_scope(Scope.INTERNAL) == inside.frontend
        and (outside.selectable, outside.unselectable) == (inside.selectable, inside.unselectable)
        and outside.no_local_backend == inside.no_local_backend
    )


def _slots(row: SVC, backends: Sequence[Backend]) -> tuple[Sequence[Backend], Hashed]:
    """Return the backend of each slot, and what selects the slot."""
    if row.algorithm is Algorithm.MAGLEV:
        return _table(backends), "flow"
    if row.algorithm is Algorithm.LEAST_CONN and any(one.weight != two.weight for one, two in pairwise(backends)):
        return _by_weight(backends), ""
    return backends, ""


def _table(backends: Sequence[Backend]) -> Sequence[Backend]:
    size = next((size for most, size in _TABLES if len(backends) <= most), _LARGEST)
    members = [(number, each.weight, each.address.hash_key()) for number, each in enumerate(backends)]
    return [backends[number] for number in lookup_table(members, size)]


def _by_weight(backends: Sequence[Backend]) -> Sequence[Backend]:
    """Return each backend as often as its weight says; where that is too often, as a table of Maglev does."""
    divisor = reduce(gcd, (each.weight for each in backends))
    if sum(each.weight // divisor for each in backends) > _MAX_WEIGHTED:
        return _table(backends)
    return [each for each in backends for _ in range(each.weight // divisor)]


def _disjoint(ranges: Iterable[CIDR]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the first and last address of ranges that have the same addresses and do not overlap: the kernel refuses others."""
    networks = [ipaddress.ip_network((cidr.network, cidr.bits)) for cidr in ranges]
    for network in ipaddress.collapse_addresses(networks):  # type: ignore[type-var]
        yield network.network_address.packed, network.broadcast_address.packed
