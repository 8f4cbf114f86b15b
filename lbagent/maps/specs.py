"""Specifications of the maps: type, sizes and flags of each, for the operator's sizes. Byte layouts are in layout.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from functools import cache

from lbagent.kernel.cpus import possible_cpus
from lbagent.maps.event_layout import EVENT_MAP
from lbagent.maps.layout import (
    CALL_MAPS,
    CALLS,
    CRC32C_SIZE,
    DATAGRAM_SIZE,
    DEVICES,
    DIRECT_BYTES,
    DIRECT_MARKS,
    FILTER_DST_BYTES,
    FILTER_SRC_BYTES,
    FLOW4_SIZE,
    FLOW6_SIZE,
    FORMER_BACKENDS,
    HANDSHAKES,
    LB4_AFFINITY_KEY,
    LB4_BACKEND,
    LB4_FRAG_KEY,
    LB4_KEY,
    LB4_PATH,
    LB4_PORT_RANGE_KEY,
    LB4_REVERSE_NAT,
    LB4_SOCK_KEY,
    LB4_SOCK_VALUE,
    LB4_SOURCE_RANGE_KEY,
    LB4_STREAM,
    LB6_AFFINITY_KEY,
    LB6_BACKEND,
    LB6_FRAG_KEY,
    LB6_KEY,
    LB6_PATH,
    LB6_PORT_RANGE_KEY,
    LB6_REVERSE_NAT,
    LB6_SOCK_KEY,
    LB6_SOCK_VALUE,
    LB6_SOURCE_RANGE_KEY,
    LB6_STREAM,
    LB_AFFINITY_MATCH,
    LB_AFFINITY_VALUE,
    LB_BACKEND_FLOWS,
    LB_CONFIG,
    LB_COUNTER,
    LB_DEVICE,
    LB_ECHO_KEY,
    LB_FRAG_VALUE,
    LB_HANDSHAKE,
    LB_NEIGHBOR_KEY,
    LB_NEXTHOP,
    LB_NEXTHOP_KEY,
    LB_PORT_RANGE,
    LB_RULES,
    LB_SERVICE,
    LB_TCP,
    LB_VIP,
    LB_VIP_KEY,
    METRIC_BACKEND,
    NEIGHBORS,
    NEXTHOPS,
    PORT_RANGES,
    RULES,
    SCRATCH_SIZE,
    SERVICE_IDS,
    SNAT4_SIZE,
    SNAT6_SIZE,
    SOCKETS,
    SPILL4_KEY,
    SPILL6_KEY,
    SPILL_VALUE,
    STALE_BACKENDS,
    STREAMS,
    VIPS,
)
from lbagent.maps.trace_layout import TRACE_BYTES


class MapType(IntEnum):
    """The map types used here. Source: include/uapi/linux/bpf.h."""

    HASH = 1
    ARRAY = 2
    PROG_ARRAY = 3
    PERCPU_ARRAY = 6
    LRU_HASH = 9
    LPM_TRIE = 11
    HASH_OF_MAPS = 13


F_NO_PREALLOC = 1
F_RDONLY_PROG = 1 << 7
F_MMAPABLE = 1 << 10


class MapRole(Enum):
    """The contents that plans write to a map; both families have a map of most roles."""

    SERVICE = auto()  # slots of frontends
    BACKEND = auto()
    REVERSE_NAT = auto()  # by service id
    AFFINITY_MATCH = auto()
    SOURCE_RANGE = auto()
    PORT_RANGE = auto()
    MAGLEV = auto()  # by service id


@dataclass(frozen=True)
class MapSpec:
    """The specification of a map. `role`: what a plan writes there; None for a map without entries that plans add and delete."""

    name: str
    type: MapType
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0
    role: MapRole | None = None


@dataclass(frozen=True)
class Sizes:
    """The sizes that an operator can set. Powers of two where noted (p2)."""

    flow4: int = 1 << 20  # p2, entries; a flow has two buckets of four ways: use half of it
    flow6: int = 1 << 19  # p2
    snat4: int = 1 << 20  # p2, slots
    snat6: int = 1 << 19  # p2
    services: int = 1 << 19  # slots of all services, a family
    backends: int = 1 << 17  # p2, <= 2^20: the flow entry has 20 bits for it
    source_ranges: int = 1 << 16
    affinity: int = 1 << 16
    spill: int = 1 << 16
    fragments: int = 1 << 13
    maglev_size: int = 16381  # prime


def counter_stripe_bytes(sizes: Sizes) -> int:
    """Return the bytes of one CPU's counters in lb_metrics."""
    return (METRIC_BACKEND + sizes.backends) * LB_COUNTER.size


def counter_stripes(sizes: Sizes) -> int:
    """Return how many stripes lb_metrics has: one a CPU, as many as a direct pointer reaches. The other CPUs share the first."""
    return min(possible_cpus(), DIRECT_BYTES // counter_stripe_bytes(sizes))


def map_specs(sizes: Sizes = Sizes()) -> dict[str, MapSpec]:
    """Return every pinned map by name, for these sizes."""
    t, s, r = MapType, sizes, MapRole
    specs = [
        MapSpec("lb4_service", t.HASH, LB4_KEY.size, LB_SERVICE.size, s.services, F_NO_PREALLOC, role=r.SERVICE),
        MapSpec("lb6_service", t.HASH, LB6_KEY.size, LB_SERVICE.size, s.services, F_NO_PREALLOC, role=r.SERVICE),
        MapSpec("lb4_backend", t.HASH, 4, LB4_BACKEND.size, s.backends, F_NO_PREALLOC, role=r.BACKEND),
        MapSpec("lb6_backend", t.HASH, 4, LB6_BACKEND.size, s.backends, F_NO_PREALLOC, role=r.BACKEND),
        MapSpec("lb4_reverse_nat", t.ARRAY, 4, LB4_REVERSE_NAT.size, SERVICE_IDS, role=r.REVERSE_NAT),
        MapSpec("lb6_reverse_nat", t.ARRAY, 4, LB6_REVERSE_NAT.size, SERVICE_IDS, role=r.REVERSE_NAT),
        MapSpec("lb4_affinity", t.LRU_HASH, LB4_AFFINITY_KEY.size, LB_AFFINITY_VALUE.size, s.affinity),
        MapSpec("lb6_affinity", t.LRU_HASH, LB6_AFFINITY_KEY.size, LB_AFFINITY_VALUE.size, s.affinity),
        MapSpec(
            "lb_affinity_match", t.HASH, LB_AFFINITY_MATCH.size, 1, s.services, F_NO_PREALLOC, role=r.AFFINITY_MATCH
        ),
        MapSpec(
            "lb4_source_range",
            t.LPM_TRIE,
            LB4_SOURCE_RANGE_KEY.size,
            1,
            s.source_ranges,
            F_NO_PREALLOC,
            role=r.SOURCE_RANGE,
        ),
        MapSpec(
            "lb6_source_range",
            t.LPM_TRIE,
            LB6_SOURCE_RANGE_KEY.size,
            1,
            s.source_ranges,
            F_NO_PREALLOC,
            role=r.SOURCE_RANGE,
        ),
        MapSpec(
            "lb4_port_range",
            t.LPM_TRIE,
            LB4_PORT_RANGE_KEY.size,
            LB_PORT_RANGE.size,
            PORT_RANGES,
            F_NO_PREALLOC,
            role=r.PORT_RANGE,
        ),
        MapSpec(
            "lb6_port_range",
            t.LPM_TRIE,
            LB6_PORT_RANGE_KEY.size,
            LB_PORT_RANGE.size,
            PORT_RANGES,
            F_NO_PREALLOC,
            role=r.PORT_RANGE,
        ),
        MapSpec("lb4_maglev", t.HASH_OF_MAPS, 4, 4, SERVICE_IDS, F_NO_PREALLOC, role=r.MAGLEV),
        MapSpec("lb6_maglev", t.HASH_OF_MAPS, 4, 4, SERVICE_IDS, F_NO_PREALLOC, role=r.MAGLEV),
        MapSpec("lb4_frag", t.LRU_HASH, LB4_FRAG_KEY.size, LB_FRAG_VALUE.size, s.fragments),
        MapSpec("lb6_frag", t.LRU_HASH, LB6_FRAG_KEY.size, LB_FRAG_VALUE.size, s.fragments),
        MapSpec("lb4_flow", t.ARRAY, 4, s.flow4 * FLOW4_SIZE, 1, F_MMAPABLE),
        MapSpec("lb6_flow", t.ARRAY, 4, s.flow6 * FLOW6_SIZE, 1, F_MMAPABLE),
        MapSpec("lb4_snat", t.ARRAY, 4, s.snat4 * SNAT4_SIZE, 1, F_MMAPABLE),
        MapSpec("lb6_snat", t.ARRAY, 4, s.snat6 * SNAT6_SIZE, 1, F_MMAPABLE),
        MapSpec("lb4_spill", t.LRU_HASH, SPILL4_KEY, SPILL_VALUE, s.spill),
        MapSpec("lb6_spill", t.LRU_HASH, SPILL6_KEY, SPILL_VALUE, s.spill),
        MapSpec("lb4_left", t.HASH, SPILL4_KEY, 8, s.spill, F_NO_PREALLOC),
        MapSpec("lb6_left", t.HASH, SPILL6_KEY, 8, s.spill, F_NO_PREALLOC),
        MapSpec("lb4_path", t.ARRAY, 4, s.backends * LB4_PATH.size, 1, F_MMAPABLE),
        MapSpec("lb6_path", t.ARRAY, 4, s.backends * LB6_PATH.size, 1, F_MMAPABLE),
        MapSpec("lb_nexthop", t.ARRAY, 4, NEXTHOPS * LB_NEXTHOP.size, 1, F_MMAPABLE),
        MapSpec("lb_nexthop_id", t.HASH, LB_NEXTHOP_KEY.size, 4, NEXTHOPS, F_NO_PREALLOC),
        MapSpec("lb_filter", t.ARRAY, 4, FILTER_DST_BYTES + FILTER_SRC_BYTES, 1, F_MMAPABLE),
        MapSpec("lb_device", t.ARRAY, 4, DEVICES * LB_DEVICE.size, 1, F_MMAPABLE),
        MapSpec("lb_direct", t.ARRAY, 4, DIRECT_MARKS * 4, 1, F_MMAPABLE),
        MapSpec("lb_live", t.ARRAY, 4, 2 * s.backends * 4, 1, F_MMAPABLE),  # two halves of u32 flows a backend id
        MapSpec("lb_closing", t.ARRAY, 4, 2 * s.backends * 4, 1, F_MMAPABLE),  # of those, the ones that have ended
        MapSpec("lb_rules_of", t.ARRAY, 4, SERVICE_IDS * 2, 1, F_MMAPABLE),
        MapSpec("lb_rules", t.ARRAY, 4, RULES * LB_RULES.size, 1, F_MMAPABLE),
        MapSpec("lb_backend_flows", t.ARRAY, 4, s.backends * LB_BACKEND_FLOWS.size, 1, F_MMAPABLE),
        MapSpec("lb_swept", t.ARRAY, 4, (RULES + s.backends) * 4, 1, F_MMAPABLE),
        MapSpec("lb_metrics", t.ARRAY, 4, counter_stripes(s) * counter_stripe_bytes(s), 1, F_MMAPABLE),
        MapSpec("lb_handshake", t.ARRAY, 4, HANDSHAKES * LB_HANDSHAKE.size, 1, F_MMAPABLE),
        MapSpec("lb_tcp", t.ARRAY, 4, s.backends * LB_TCP.size, 1, F_MMAPABLE),
        MapSpec("lb_new_flows", t.ARRAY, 4, counter_stripes(s) * SERVICE_IDS * 8, 1, F_MMAPABLE),
        MapSpec("lb_scratch", t.PERCPU_ARRAY, 4, SCRATCH_SIZE, 1),
        MapSpec("lb_ratelimit", t.PERCPU_ARRAY, 4, 16, 1),
        MapSpec("lb_datagram", t.PERCPU_ARRAY, 4, DATAGRAM_SIZE, 1),
        MapSpec("lb_config", t.ARRAY, 4, LB_CONFIG.size, 1, F_RDONLY_PROG),
        MapSpec("lb_neighbor", t.HASH, LB_NEIGHBOR_KEY.size, 1, NEIGHBORS, F_NO_PREALLOC),
        MapSpec("lb_vip", t.HASH, LB_VIP_KEY.size, LB_VIP.size, VIPS, F_NO_PREALLOC),
        MapSpec("lb_former_leader", t.HASH, LB_VIP_KEY.size, LB_VIP.size, VIPS, F_NO_PREALLOC),
        MapSpec("lb_echo", t.HASH, LB_ECHO_KEY.size, 2 * LB_SERVICE.size, SERVICE_IDS, F_NO_PREALLOC),
        MapSpec("lb_former_backend", t.HASH, 8, 4, FORMER_BACKENDS, F_NO_PREALLOC),
        MapSpec("lb_stale_backend", t.HASH, 8, 8, STALE_BACKENDS, F_NO_PREALLOC),
        MapSpec("lb4_sock", t.LRU_HASH, LB4_SOCK_KEY.size, LB4_SOCK_VALUE.size, SOCKETS),
        MapSpec("lb6_sock", t.LRU_HASH, LB6_SOCK_KEY.size, LB6_SOCK_VALUE.size, SOCKETS),
        MapSpec("lb4_stream", t.ARRAY, 4, STREAMS * LB4_STREAM.size, 1),
        MapSpec("lb6_stream", t.ARRAY, 4, STREAMS * LB6_STREAM.size, 1),
        *(MapSpec(name, t.PROG_ARRAY, 4, 4, CALLS) for name in CALL_MAPS),
        MapSpec("lb_crc32c", t.ARRAY, 4, CRC32C_SIZE, 1, F_RDONLY_PROG),
    ]
    return {spec.name: spec for spec in specs}


@cache
def roles() -> Mapping[str, MapRole]:
    """Return the role of each map that has one, by name."""
    return {spec.name: spec.role for spec in map_specs().values() if spec.role is not None}


def maglev_inner(sizes: Sizes = Sizes()) -> MapSpec:
    """Return the inner map of lb{4,6}_maglev: one value of maglev_size backend ids (u32, host order)."""
    return MapSpec("lb_maglev_inner", MapType.ARRAY, 4, 4 * sizes.maglev_size, 1)


def trace_map() -> MapSpec:
    """Return the trace of dry programs: one value. It is never pinned."""
    return MapSpec(TRACE_MAP, MapType.ARRAY, 4, TRACE_BYTES, 1)


ADDED_MAPS = (
    "lb_neighbor",
    "lb4_sock",
    "lb6_sock",
    "lb4_stream",
    "lb6_stream",
    "lb_direct",
    "lb_vip",
    "lb_former_leader",
    "lb_former_backend",
    "lb_stale_backend",
    "lb_handshake",
    "lb_tcp",
    "lb_new_flows",
    "lb_closing",
    "lb4_left",
    "lb6_left",
    "lb_echo",
    "lb_rules_of",
    "lb_rules",
    "lb_backend_flows",
    "lb_swept",
    "lb4_port_range",
    "lb6_port_range",
)  # pins of an earlier version of this schema lack them; only the agent makes them

# The old map, for programs while flows are being moved. At any other time it is the map itself (bpf/load/loader.py).
OLD_MAPS = {
    "lb4_flow_old": "lb4_flow",
    "lb6_flow_old": "lb6_flow",
    "lb4_snat_old": "lb4_snat",
    "lb6_snat_old": "lb6_snat",
}
TRACE_MAP = "lb_trace"  # of dry programs (trace_layout.py); never pinned
MAP_NAMES: tuple[str, ...] = (
    *map_specs(),
    *OLD_MAPS,
    TRACE_MAP,
    EVENT_MAP,
)  # position + MAP_BASE = the symbolic fd in the C sources
MAP_BASE = 1000
