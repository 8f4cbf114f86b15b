"""Model <-> map entries. Pure.

`encode` turns an SVC into everything the maps hold for it alone (Rows); backend rows, path records and filter bits are
shared by services and encoded one by one.
"""

from __future__ import annotations

import struct
import sys
from array import array
from functools import lru_cache
from typing import Final

from msgspec import Struct

from lbagent.maps.layout import (
    FILTER_DST_BYTES,
    LB4_BACKEND,
    LB4_PATH,
    LB4_REVERSE_NAT,
    LB4_SOURCE_RANGE_KEY,
    LB6_BACKEND,
    LB6_PATH,
    LB6_REVERSE_NAT,
    LB6_SOURCE_RANGE_KEY,
    LB_AFFINITY_MATCH,
    LB_SERVICE,
    PATH_L4_SHIFT,
    REVNAT_ELSEWHERE,
    SOURCE_RANGE_STATIC_BITS,
    TARGET_ALGORITHM_SHIFT,
    TARGET_SECONDS_MASK,
    PathFlag,
    PathL4,
    filter_hash,
)
from lbagent.maps.lbmaps import PathInfo
from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.backend import Backend, BackendState
from lbagent.model.maglev import Member, lookup_table
from lbagent.model.service import CIDR, SVC, Algorithm

ORDER: Final = sys.byteorder
PRESENT = b"\1"  # value of maps that are sets
_SERVICE = LB_SERVICE.codec
SLOT = struct.Struct("=H")
U32 = struct.Struct("=I")
_LIVE, _SELECTABLE, _LOCAL, _HOST = map(int, PathFlag)  # plain ints: 100,000 records are made at a start
_L4_FLAGS = {protocol: PathL4[protocol.name] << PATH_L4_SHIFT for protocol in L4Type}
MAX_SLOTS = 0xFFFF  # backend_slot, count and qcount are u16


class FrontendEntries(Struct):
    """What the maps hold for one frontend. `members` say what its Maglev table is made of; `table` is one that was read."""

    id: int
    slots: dict[int, bytes]  # value by slot, 0 = master
    reverse: bytes = b""
    affinity: frozenset[int] = frozenset()  # backend ids
    ranges: frozenset[bytes] = frozenset()  # LPM keys
    verdicts: tuple[
        tuple[bytes, bytes], ...
    ] = ()  # those of them whose value is not PRESENT, with it: a change broke off
    members: tuple[Member, ...] = ()
    table: bytes | None = None

    @property
    def has_table(self) -> bool:
        """Whether there is a Maglev table."""
        return bool(self.members) or self.table is not None

    def backend_ids(self) -> set[int]:
        """Return the backends its slots name."""
        return {U32.unpack_from(value)[0] for slot, value in self.slots.items() if slot}


def encode(svc: SVC) -> FrontendEntries:
    """Return the rows of a frontend whose ids are assigned."""
    rev, flags = svc.id.to_bytes(2, "big"), int(svc.flags)
    low, high = flags & 0xFF, flags >> 8
    pack = _SERVICE.pack
    slots = {0: pack(_target(svc), len(svc.selectable), rev, low, high, len(svc.others))}
    for slot, backend in enumerate(svc.selectable + svc.others, 1):
        slots[slot] = pack(backend.id, 0, rev, low, high, 0)
    rows = FrontendEntries(svc.id, slots)
    if svc.id:
        rows.reverse = reverse_value(svc.frontend, elsewhere=svc.has_elsewhere)
        if svc.session_affinity:
            rows.affinity = frozenset([backend.id for backend in svc.selectable])
        if svc.source_ranges:
            rows.ranges = frozenset([range_key(svc.id, cidr) for cidr in svc.source_ranges if _of_family(cidr, svc)])
        if svc.algorithm is Algorithm.MAGLEV:
            rows.members = table_members(svc)
    return rows


def entry_count(svc: SVC) -> int:
    """Return how many service map entries an SVC takes."""
    return 1 + len(svc.selectable) + len(svc.others)


def _target(svc: SVC) -> int:
    low = svc.l7_lb_proxy_port if svc.flags.is_l7lb() else min(svc.affinity_timeout_s, TARGET_SECONDS_MASK)
    return svc.algorithm.number << TARGET_ALGORITHM_SHIFT | low


def _of_family(cidr: CIDR, svc: SVC) -> bool:
    return len(cidr.network) == len(svc.frontend.address)


# --- services ---


def family(address: bytes) -> str:
    """Return the digit in the map names of an address's family."""
    return "4" if len(address) == 4 else "6"


def service_key_parts(frontend: L3n4Addr) -> tuple[bytes, bytes]:
    """Return what comes before and after the slot in the keys of a frontend."""
    head = frontend.address + frontend.port.to_bytes(2, "big")
    return head, bytes((frontend.protocol.number, frontend.scope, 0, 0))


def service_key(frontend: L3n4Addr, slot: int) -> bytes:
    """Return the key of one slot."""
    head, tail = service_key_parts(frontend)
    return head + SLOT.pack(slot) + tail


def split_service_key(key: bytes) -> tuple[bytes, int]:
    """Return (what names the frontend, slot) of a key; cheap, for grouping."""
    at = len(key) - 6
    return key[:at] + key[at + 2 :], SLOT.unpack_from(key, at)[0]


def frontend_of(name: bytes) -> L3n4Addr:
    """Return the frontend of the first part of split_service_key."""
    address, rest = name[:-6], name[-6:]
    return L3n4Addr(address, int.from_bytes(rest[:2], "big"), L4Type.from_number(rest[2]), Scope(rest[3]))


def service_id_of(value: bytes | bytearray) -> int:
    """Return the id in a slot's value."""
    return int.from_bytes(value[6:8], "big")


def target_of(value: bytes) -> int:
    """Return the first word of a slot's value: the backend's id, in slot 0 algorithm and affinity time-out."""
    return int(U32.unpack_from(value)[0])


def count_of(master: bytes) -> int:
    """Return how many slots a new flow may take."""
    return int.from_bytes(master[4:6], ORDER)


def flags_of(value: bytes) -> int:
    """Return the flags in a slot's value."""
    return value[8] | value[9] << 8


def reverse_value(frontend: L3n4Addr, *, elsewhere: bool = False) -> bytes:
    """Return the reverse NAT row of a frontend; `elsewhere` makes the program drop where it would reject."""
    scope = frontend.scope | (REVNAT_ELSEWHERE if elsewhere else 0)
    address, port, number = frontend.address, frontend.port.to_bytes(2, "big"), frontend.protocol.number
    if len(address) == 4:
        return LB4_REVERSE_NAT.pack(address, port, number, scope)
    return LB6_REVERSE_NAT.pack(address, port, number, scope, b"")


def reverse_frontend(value: bytes) -> L3n4Addr:
    """Return the frontend of a reverse NAT row."""
    size = 4 if len(value) == LB4_REVERSE_NAT.size else 16
    port, number, scope = int.from_bytes(value[size : size + 2], "big"), value[size + 2], value[size + 3]
    return L3n4Addr(value[:size], port, L4Type.from_number(number), Scope(scope & 1))


def is_elsewhere(value: bytes) -> bool:
    """Return whether a reverse NAT row says that all endpoints are on other nodes; of no row, False."""
    return bool(value and value[(4 if len(value) == LB4_REVERSE_NAT.size else 16) + 3] & REVNAT_ELSEWHERE)


def numbers(keys: bytes) -> array[int]:
    """Return keys that are numbers."""
    return array("I", keys)


def affinity_key(service_id: int, backend_id: int) -> bytes:
    """Return the affinity match key of a backend that belongs to a service."""
    return LB_AFFINITY_MATCH.pack(backend_id, service_id.to_bytes(2, "big"), b"")


def affinity_ids(key: bytes) -> tuple[int, int]:
    """Return (service id, backend id) of an affinity match key."""
    return int.from_bytes(key[4:6], "big"), U32.unpack_from(key)[0]


def range_key(service_id: int, cidr: CIDR) -> bytes:
    """Return the LPM key of a source range."""
    layout = LB4_SOURCE_RANGE_KEY if len(cidr.network) == 4 else LB6_SOURCE_RANGE_KEY
    return layout.pack(SOURCE_RANGE_STATIC_BITS + cidr.bits, service_id.to_bytes(2, "big"), b"", cidr.network)


def range_of(key: bytes) -> tuple[int, CIDR]:
    """Return (service id, range) of an LPM key."""
    return int.from_bytes(key[4:6], "big"), CIDR(key[8:], U32.unpack_from(key)[0] - SOURCE_RANGE_STATIC_BITS)


def table_members(svc: SVC) -> tuple[Member, ...]:
    """Return what the Maglev table of a frontend is made of, the same for every frontend with this set."""
    found = [
        (backend.id, backend.weight, backend.address.hash_key()) for backend in svc.selectable if backend.weight > 0
    ]
    return tuple(sorted(found))


@lru_cache(maxsize=32)
def table_bytes(members: tuple[Member, ...], size: int) -> bytes:
    """Return the Maglev table as the inner map holds it; the same object for an equal set asked for again soon."""
    return lookup_table(members, size).tobytes()


# --- backends and paths ---


def backend_value(address: L3n4Addr, state: BackendState) -> bytes:
    """Return the row of a backend. The zone byte stays 0: zone names have no numbers of their own (docs/maps.md)."""
    layout = LB4_BACKEND if len(address.address) == 4 else LB6_BACKEND
    number = address.protocol.number
    return layout.codec.pack(
        address.address, address.port.to_bytes(2, "big"), number, state.to_flags(), address.cluster_id, 0, b""
    )


def backend_of(value: bytes) -> tuple[L3n4Addr, BackendState]:
    """Return address and state of a backend row."""
    layout = LB4_BACKEND if len(value) == LB4_BACKEND.size else LB6_BACKEND
    address, port, number, flags, cluster, _, _ = layout.codec.unpack(value)
    found = L3n4Addr(address, int.from_bytes(port, "big"), L4Type.from_number(number), Scope.EXTERNAL, cluster)
    return found, BackendState.from_flags(flags)


class PathRecord(Struct, frozen=True, gc=False):
    """A path record taken apart."""

    address: bytes
    snat: bytes
    port: int
    gen: int
    flags: int
    nexthop: int
    mtu: int

    @property
    def live(self) -> bool:
        """Whether the backend exists."""
        return bool(self.flags & PathFlag.LIVE)

    @property
    def protocol(self) -> PathL4:
        """The backend's protocol."""
        return PathL4(self.flags >> PATH_L4_SHIFT & max(PathL4))


def path_value(backend: Backend, info: PathInfo, gen: int, *, selectable: bool) -> bytes:
    """Return the live record of a backend."""
    address = backend.address
    flags = _LIVE
    flags |= _SELECTABLE if selectable else 0
    flags |= _LOCAL if info.local else 0
    flags |= _HOST if info.host else 0
    flags |= _L4_FLAGS[address.protocol]
    raw, port = address.address, address.port.to_bytes(2, "big")
    snat = info.snat if len(info.snat) == len(raw) else bytes(len(raw))
    if len(raw) == 4:
        return LB4_PATH.codec.pack(raw, snat, port, gen, flags, info.nexthop, info.mtu)
    return LB6_PATH.codec.pack(raw, snat, port, gen, flags, info.nexthop, info.mtu, b"")


def gone_path(record: bytes) -> bytes:
    """Return the record of a backend taken away: not live, next generation, so that no flow takes a later one for it."""
    at = META_AT[len(record)]
    meta = record[at : at + 2] + bytes(((record[at + 2] + 1) & 0xFF, 0)) + bytes(4)
    return record[:at] + meta + record[at + 8 :]


def path_of(record: bytes) -> PathRecord:
    """Take a record apart."""
    layout = LB4_PATH if len(record) == LB4_PATH.size else LB6_PATH
    address, snat, port, gen, flags, nexthop, mtu = layout.codec.unpack(record)[:7]
    return PathRecord(address, snat, int.from_bytes(port, "big"), gen, flags, nexthop, mtu)


# Where the meta word (port, gen, flags, nexthop, mtu) lies, by record size: one aligned store publishes it.
META_AT = {LB4_PATH.size: LB4_PATH.offsets()["port"], LB6_PATH.size: LB6_PATH.offsets()["port"]}
FLAGS_AT = {size: at + 3 for size, at in META_AT.items()}
GEN_AT = {size: at + 2 for size, at in META_AT.items()}


# --- prefilter: one number a bit, counted from the start of lb_filter in little-endian words ---


def vip_bit(address: bytes) -> int:
    """Return the bit "a VIP or node address concerned" of an address."""
    return 2 * filter_hash(address)


def snat_bit(address: bytes) -> int:
    """Return the bit "this node translates to it"."""
    return 2 * filter_hash(address) + 1


def source_bit(address: bytes) -> int:
    """Return the bit "source is a local backend"."""
    return FILTER_DST_BYTES * 8 + filter_hash(address)
