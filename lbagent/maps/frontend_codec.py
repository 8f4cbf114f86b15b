"""Frontend <-> map entries: slots, reverse NAT, affinity matches, source ranges, Maglev tables. Pure.

`encode` turns an SVC into the map entries that it alone owns (FrontendEntries). backend_codec.py has the shared backends and
paths, prefilter.py the prefilter.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from lbagent.maps.layout import (
    HOST_ORDER,
    LB4_REVERSE_NAT,
    LB6_REVERSE_NAT,
    LB_AFFINITY_MATCH,
    LB_PORT_RANGE,
    LB_SERVICE,
    PORT_RANGE_KEY,
    PORT_RANGE_STATIC_BITS,
    REVNAT_NO_LOCAL_BACKEND,
    SOURCE_RANGE_KEY,
    SOURCE_RANGE_STATIC_BITS,
    TARGET_ALGORITHM_SHIFT,
    TARGET_RULES,
    TARGET_SECONDS_MASK,
    U16,
    U32,
    u32_values,
)
from lbagent.maps.port_cover import port_prefixes
from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.family import Family
from lbagent.model.maglev import Member, lookup_table
from lbagent.model.service import CIDR, SVC, Algorithm

PRESENT = b"\1"  # value of maps that are sets
_SERVICE = LB_SERVICE.codec


class FrontendEntries(Struct):
    """The map entries of one frontend. `members` determine its Maglev table; `table` is one that was read."""

    id: int
    slots: dict[int, bytes]  # value by slot, 0 = master
    reverse: bytes = b""
    affinity: frozenset[int] = frozenset()  # backend ids
    ranges: frozenset[bytes] = frozenset()  # LPM keys
    verdicts: tuple[tuple[bytes, bytes], ...] = ()  # the ones with a value other than PRESENT: an interrupted change
    members: tuple[Member, ...] = ()
    table: bytes | None = None
    ports: frozenset[bytes] = frozenset()  # LPM keys of a range of ports, which both scopes share: of scope EXTERNAL

    @property
    def has_table(self) -> bool:
        """Whether there is a Maglev table."""
        return bool(self.members) or self.table is not None

    def backend_ids(self) -> set[int]:
        """Return the backends of its slots."""
        slots = b"".join([value for slot, value in self.slots.items() if slot])
        return set(u32_values(slots)[:: _SERVICE.size // U32.size])


NO_ENTRIES = FrontendEntries(0, {})  # of a missing frontend; do not change it


def encode(svc: SVC) -> FrontendEntries:
    """Return the entries of a frontend with assigned ids."""
    rev, flags = svc.id.to_bytes(2, "big"), int(svc.flags)
    low, high = flags & 0xFF, flags >> 8
    pack = _SERVICE.pack
    slots = {0: pack(_target(svc), len(svc.selectable), rev, low, high, len(svc.unselectable))}
    for slot, backend in enumerate(svc.selectable + svc.unselectable, 1):
        slots[slot] = pack(backend.id, 0, rev, low, high, 0)
    rows = FrontendEntries(svc.id, slots)
    if svc.frontend.last_port and svc.frontend.scope is Scope.EXTERNAL:
        rows.ports = port_range_keys(svc.frontend)
    if svc.id:
        rows.reverse = reverse_nat_value(svc.frontend, no_local_backend=svc.no_local_backend)
        if svc.session_affinity:
            rows.affinity = frozenset([backend.id for backend in svc.selectable])
        if svc.source_ranges:
            family = svc.frontend.family
            ranges = [cidr for cidr in svc.source_ranges if Family.of(cidr.network) is family]
            rows.ranges = frozenset([source_range_key(svc.id, cidr) for cidr in ranges])
        if svc.algorithm is Algorithm.MAGLEV or (svc.algorithm is Algorithm.LEAST_CONN and weights_differ(svc)):
            rows.members = maglev_members(svc)
    return rows


def entry_count(svc: SVC) -> int:
    """Return how many service map entries an SVC takes."""
    return 1 + len(svc.selectable) + len(svc.unselectable)


def _target(svc: SVC) -> int:
    low = svc.l7_lb_proxy_port if svc.flags.is_l7lb() else min(svc.affinity_timeout_s, TARGET_SECONDS_MASK)
    rules = TARGET_RULES if has_rules(svc) else 0
    return (svc.algorithm.number | rules) << TARGET_ALGORITHM_SHIFT | low


def has_rules(svc: SVC) -> bool:
    """Return whether new flows of a frontend are counted and chosen by bpf/include/service/flow_rules.h."""
    return bool(svc.id) and (svc.flow_rules is not None or svc.algorithm is Algorithm.LEAST_CONN)


def weights_differ(svc: SVC) -> bool:
    """Return whether least-conn draws backends by their weights, so that it needs a table."""
    return len({backend.weight for backend in svc.selectable if backend.weight > 0}) > 1


def service_key_parts(frontend: L3n4Addr) -> tuple[bytes, bytes]:
    """Return the bytes before and after the slot in the keys of a frontend."""
    head = frontend.address + frontend.port.to_bytes(2, "big")
    return head, bytes((frontend.protocol.number, frontend.scope)) + frontend.last_port.to_bytes(2, "big")


def service_key(frontend: L3n4Addr, slot: int) -> bytes:
    """Return the key of one slot."""
    head, tail = service_key_parts(frontend)
    return head + U16.pack(slot) + tail


def split_service_key(key: bytes) -> tuple[bytes, int]:
    """Return (prefix of the frontend, slot) of a key; cheap, for grouping."""
    at = len(key) - 6
    return key[:at] + key[at + 2 :], U16.unpack_from(key, at)[0]


def frontend_of(name: bytes) -> L3n4Addr:
    """Return the frontend of the first part of split_service_key."""
    address, rest = name[:-6], name[-6:]
    first, last = int.from_bytes(rest[:2], "big"), int.from_bytes(rest[4:], "big")
    return L3n4Addr(address, first, L4Type.from_number(rest[2]), Scope(rest[3]), last_port=last)


def service_id_of(value: bytes | bytearray) -> int:
    """Return the id in a slot's value."""
    return int.from_bytes(value[6:8], "big")


def backend_id_of(value: bytes) -> int:
    """Return the backend's id in the value of a slot other than 0."""
    return int(U32.unpack_from(value)[0])


def split_target(master: bytes) -> tuple[int, int]:
    """Return (number of the algorithm, affinity time-out in s, or the proxy's port with the L7 flag) of slot 0."""
    target = U32.unpack_from(master)[0]
    return target >> TARGET_ALGORITHM_SHIFT & (TARGET_RULES - 1), target & TARGET_SECONDS_MASK


def master_has_rules(master: bytes) -> bool:
    """Return whether slot 0 says that the Service has rules about its new flows."""
    return bool(U32.unpack_from(master)[0] >> TARGET_ALGORITHM_SHIFT & TARGET_RULES)


def selectable_count(master: bytes) -> int:
    """Return the number of slots that new flows may use."""
    return int.from_bytes(master[4:6], HOST_ORDER)


def flags_of(value: bytes) -> int:
    """Return the flags in a slot's value."""
    return value[8] | value[9] << 8


def with_flags(value: bytes, flags: int) -> bytes:
    """Return a slot's value with other flags."""
    return value[:8] + bytes((flags & 0xFF, flags >> 8)) + value[10:]


def reverse_nat_value(frontend: L3n4Addr, *, no_local_backend: bool = False) -> bytes:
    """Return the reverse NAT value of a frontend; `no_local_backend` makes the program drop instead of reject.

    That of a range has port 0: its replies keep their port.
    """
    scope = frontend.scope | (REVNAT_NO_LOCAL_BACKEND if no_local_backend else 0)
    port = (0 if frontend.last_port else frontend.port).to_bytes(2, "big")
    address, number = frontend.address, frontend.protocol.number
    if len(address) == 4:
        return LB4_REVERSE_NAT.pack(address, port, number, scope)
    return LB6_REVERSE_NAT.pack(address, port, number, scope, b"")


def reverse_nat_frontend(value: bytes) -> L3n4Addr:
    """Return the frontend of a reverse NAT value; port 0: its ports are a range, which the value does not have."""
    size = _address_bytes(value)
    port, number, scope = int.from_bytes(value[size : size + 2], "big"), value[size + 2], value[size + 3]
    return L3n4Addr(value[:size], port, L4Type.from_number(number), Scope(scope & 1))


def has_no_local_backend(value: bytes) -> bool:
    """Return whether a reverse NAT value has the mark that all endpoints are on other nodes; False without a value."""
    return bool(value and value[_address_bytes(value) + 3] & REVNAT_NO_LOCAL_BACKEND)


def _address_bytes(reverse_nat: bytes) -> int:
    return (Family.IPV4 if len(reverse_nat) == LB4_REVERSE_NAT.size else Family.IPV6).address_bytes


def is_reverse_of(value: bytes, frontend: L3n4Addr) -> bool:
    """Return whether a reverse NAT value is that of the frontend."""
    found = reverse_nat_frontend(value)
    if frontend.last_port:
        return not found.port and found == replace(frontend, port=0, last_port=0)
    return found == frontend


def port_range_keys(frontend: L3n4Addr) -> frozenset[bytes]:
    """Return the LPM keys of a frontend with a range of ports."""
    static = PORT_RANGE_STATIC_BITS + 8 * len(frontend.address)
    layout, number, address = PORT_RANGE_KEY[frontend.family], frontend.protocol.number, frontend.address
    return frozenset(
        layout.pack(static + bits, number, b"", address, port.to_bytes(2, "big"), b"")
        for port, bits in port_prefixes(frontend.port, frontend.last_port)
    )


def port_range_value(frontend: L3n4Addr) -> bytes:
    """Return the value of each of these keys: the ports in the frontend's keys of the service map."""
    return LB_PORT_RANGE.pack(frontend.port.to_bytes(2, "big"), frontend.last_port.to_bytes(2, "big"))


def port_range_frontend(key: bytes, value: bytes) -> L3n4Addr:
    """Return the frontend (of scope EXTERNAL) of an entry."""
    first, last = int.from_bytes(value[:2], "big"), int.from_bytes(value[2:], "big")
    return L3n4Addr(key[8:-4], first, L4Type.from_number(key[4]), last_port=last)


def affinity_match_key(service_id: int, backend_id: int) -> bytes:
    """Return the affinity match key of a backend that belongs to a service."""
    return LB_AFFINITY_MATCH.pack(backend_id, service_id.to_bytes(2, "big"), b"")


def affinity_match_ids(key: bytes) -> tuple[int, int]:
    """Return (service id, backend id) of an affinity match key."""
    return int.from_bytes(key[4:6], "big"), U32.unpack_from(key)[0]


def source_range_key(service_id: int, cidr: CIDR) -> bytes:
    """Return the LPM key of a source range."""
    return SOURCE_RANGE_KEY[Family.of(cidr.network)].pack(
        SOURCE_RANGE_STATIC_BITS + cidr.bits, service_id.to_bytes(2, "big"), b"", cidr.network
    )


def source_range_of(key: bytes) -> tuple[int, CIDR]:
    """Return (service id, range) of an LPM key."""
    return int.from_bytes(key[4:6], "big"), CIDR(key[8:], U32.unpack_from(key)[0] - SOURCE_RANGE_STATIC_BITS)


def maglev_members(svc: SVC) -> tuple[Member, ...]:
    """Return the members of the Maglev table of a frontend, the same for every frontend with this set."""
    found = [
        (backend.id, backend.weight, backend.address.hash_key()) for backend in svc.selectable if backend.weight > 0
    ]
    return tuple(sorted(found))


@lru_cache(maxsize=32)
def maglev_table(members: tuple[Member, ...], size: int) -> bytes:
    """Return the Maglev table for the inner map; the same object for an equal set requested again soon."""
    return lookup_table(members, size).tobytes()
