"""Every record at the kernel border: byte layout, byte order, size. The only place (flow_layout.py: bits of flows).

C gets the same sizes, offsets and constants as a generated prelude (bpf/compiler/c_source.py), checked by the compiler; the agent
compares a pinned map with its spec (specs.py) before it uses it. `be` fields are in network byte order in the map;
everything else is host order. Source: cilium bpf/lib/lb.h layouts (behaviour), docs/maps.md.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from lbagent.maps import flow_layout
from lbagent.model.extra_snat_sources import MAX_EXTRA_SNAT
from lbagent.model.family import Family

SCHEMA = "v1"  # pin directory under --bpffs; changes when any layout below changes incompatibly

HOST_ORDER: Final = sys.byteorder
U16, U32 = struct.Struct("=H"), struct.Struct("=I")  # a key or a value that is one number in host order


def u32_values(data: bytes) -> array[int]:
    """Return packed numbers: the keys of an array or of a hash by id, the entries of a Maglev table."""
    return array("I", data)


def is_zero(data: bytes) -> bool:
    """Whether all bytes are 0; one comparison in C, where `strip` takes a call for each byte."""
    return data == bytes(len(data))


_CODES = {
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "be16": "2s", "be32": "4s", "be128": "16s", "mac": "6s",
}  # fmt: skip
_SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "be16": 2, "be32": 4, "be128": 16, "mac": 6}


@dataclass(frozen=True)
class Layout:
    """A C struct: fields in order, every pad explicit (`pad<N>` fields must be zero).

    `be*` and `mac` fields pack from bytes, so a port is `port.to_bytes(2, "big")`.
    """

    name: str
    fields: tuple[tuple[str, str], ...]
    codec: struct.Struct = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Build the codec once; packing is on the hot path of a full sync."""
        object.__setattr__(self, "codec", struct.Struct("=" + "".join(_code(kind) for _, kind in self.fields)))

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.codec.size

    def offsets(self) -> dict[str, int]:
        """Byte offset of each field by name."""
        out, at = {}, 0
        for name, kind in self.fields:
            out[name] = at
            at += _size(kind)
        return out

    def pack(self, *values: int | bytes) -> bytes:
        """Pack all fields in order, pads included."""
        return self.codec.pack(*values)

    def unpack(self, data: bytes | memoryview) -> tuple[int | bytes, ...]:
        """Unpack one record."""
        return self.codec.unpack(data)


def _code(kind: str) -> str:
    return f"{kind[3:]}s" if kind.startswith("pad") else _CODES[kind]


def _size(kind: str) -> int:
    return int(kind[3:]) if kind.startswith("pad") else _SIZES[kind]


def _layout(name: str, text: str) -> Layout:
    return Layout(name, tuple((n, k) for k, n in (part.split() for part in text.split(","))))


# --- services and backends (cilium's bytes) ---
# (`last_port`, not cilium's: the last port of a range that begins at dport; 0 for one port)
LB4_KEY = _layout("lb4_key", "be32 address, be16 dport, u16 backend_slot, u8 proto, u8 scope, be16 last_port")
LB6_KEY = _layout("lb6_key", "be128 address, be16 dport, u16 backend_slot, u8 proto, u8 scope, be16 last_port")
# Ranges of ports: protocol, address and a prefix of the port -> the ports of the key in lb{4,6}_service. The prefixes of a range
# cover its ports exactly (port_cover.py).
LB4_PORT_RANGE_KEY = _layout(
    "lb4_port_range_key", "u32 prefixlen, u8 proto, pad3 pad, be32 address, be16 port, pad2 pad_end"
)
LB6_PORT_RANGE_KEY = _layout(
    "lb6_port_range_key", "u32 prefixlen, u8 proto, pad3 pad, be128 address, be16 port, pad2 pad_end"
)
PORT_RANGE_STATIC_BITS = 32  # protocol and pad come before the address in the prefix
LB_PORT_RANGE = _layout("lb_port_range", "be16 first, be16 last")
# `target` is backend_id (slots); in a master entry LBALG << 24 | affinity seconds, or LBALG << 24 | proxy port with the L7 flag.
LB_SERVICE = _layout("lb_service", "u32 target, u16 count, be16 rev_nat_index, u8 flags, u8 flags2, u16 qcount")
LB4_BACKEND = _layout("lb4_backend", "be32 address, be16 port, u8 proto, u8 flags, u16 cluster_id, u8 zone, pad1 pad")
LB6_BACKEND = _layout("lb6_backend", "be128 address, be16 port, u8 proto, u8 flags, u16 cluster_id, u8 zone, pad1 pad")
# arrays indexed by service id, so that a reply costs an index and not a hash look-up
# A removed frontend has proto 0; port 0 is a range: its replies keep their port.
# `scope` may carry REVNAT_NO_LOCAL_BACKEND: Local policy, no local endpoint, but the cluster has some (drop, do not reject)
REVNAT_NO_LOCAL_BACKEND = 0x80
LB4_REVERSE_NAT = _layout("lb4_reverse_nat", "be32 address, be16 port, u8 proto, u8 scope")
LB6_REVERSE_NAT = _layout("lb6_reverse_nat", "be128 address, be16 port, u8 proto, u8 scope, pad4 pad")
LB4_AFFINITY_KEY = _layout(
    "lb4_affinity_key", "be32 client, u32 client_hi, be16 rev_nat_index, u8 netns_cookie, u8 pad1, u32 pad2"
)
LB6_AFFINITY_KEY = _layout("lb6_affinity_key", "be128 client, be16 rev_nat_index, u8 netns_cookie, u8 pad1, u32 pad2")
LB_AFFINITY_VALUE = _layout("lb_affinity_value", "u64 last_used, u32 backend_id, pad4 pad")  # last_used: ns since boot
LB_AFFINITY_MATCH = _layout("lb_affinity_match", "u32 backend_id, be16 rev_nat_index, pad2 pad")
LB4_SOURCE_RANGE_KEY = _layout("lb4_source_range_key", "u32 prefixlen, be16 rev_nat_index, pad2 pad, be32 address")
LB6_SOURCE_RANGE_KEY = _layout("lb6_source_range_key", "u32 prefixlen, be16 rev_nat_index, pad2 pad, be128 address")
TARGET_ALGORITHM_SHIFT = 24
TARGET_SECONDS_MASK = 0xFFFFFF
SOURCE_RANGE_STATIC_BITS = 32  # rev_nat_index and pad come before the address in the prefix
# Values (u8) of an entry. Values below these: listed, and the master's flag decides. These hold their own verdict while the flag
# changes from allow to deny or back (targets/bpf/ranges.py).
SOURCE_RANGE_LETS_IN, SOURCE_RANGE_KEEPS_OUT = 2, 3
LB4_FRAG_KEY = _layout("lb4_frag_key", "be32 saddr, be32 daddr, be16 id, u8 proto, u8 pad")
LB6_FRAG_KEY = _layout("lb6_frag_key", "be128 saddr, be128 daddr, be32 id, u8 proto, pad3 pad")
LB_FRAG_VALUE = _layout("lb_frag_value", "be16 sport, be16 dport")
# State of socket programs for a socket. Key: its cookie and an address with port: SOCK_REVERSE: of a backend, and the value is
# the frontend that the process used; SOCK_CHOICE: of a frontend, and the value is the backend of an unconnected socket. `seen`:
# ticks (lb_config.jiffies_shift) of the last datagram sent.
LB4_SOCK_KEY = _layout("lb4_sock_key", "u64 cookie, be32 address, be16 port, u8 kind, pad1 pad")
LB6_SOCK_KEY = _layout("lb6_sock_key", "u64 cookie, be128 address, be16 port, u8 kind, pad5 pad")
LB4_SOCK_VALUE = _layout(
    "lb4_sock_value", "be32 address, be16 port, u8 backend_gen, pad1 pad, u32 backend_id, u32 seen"
)
LB6_SOCK_VALUE = _layout(
    "lb6_sock_value", "be128 address, be16 port, u8 backend_gen, pad1 pad, u32 backend_id, u32 seen, pad4 pad_end"
)
SOCK_REVERSE, SOCK_CHOICE = 0, 1
# The same for a TCP socket, which has one peer: the frontend that its backend's address stands for. The cookie selects the
# record, which another socket may overwrite.
LB4_STREAM = _layout("lb4_stream", "u64 cookie, be32 peer, be32 address, be16 peer_port, be16 port, pad4 pad")
LB6_STREAM = _layout("lb6_stream", "u64 cookie, be128 peer, be128 address, be16 peer_port, be16 port, pad4 pad")

# --- arrays of the fast path ---
# One record a backend id, and one for each extra SNAT address of the node (model/extra_snat_sources.py), whose number is in
# `nexthop` from bit PATH_EXTRA_SNAT_SHIFT on. `meta` (port .. mtu) is one aligned u64: user space publishes it with one store,
# after the addresses.
LB4_PATH = _layout("lb4_path", "be32 address, be32 snat, be16 port, u8 gen, u8 flags, u16 nexthop, u16 mtu")
LB6_PATH = _layout(
    "lb6_path", "be128 address, be128 snat, be16 port, u8 gen, u8 flags, u16 nexthop, u16 mtu, pad24 pad"
)
# One record per next hop (neighbour on a device). Published whole before its index is used; retired by ifindex = 0.
LB_NEXTHOP = _layout("lb_nexthop", "mac dmac, mac smac, u32 ifindex")
NEXTHOP_NO_XDP = 1 << 31  # bit of a record's ifindex, a positive int: the device accepts no frames that XDP sends
LB_NEXTHOP_KEY = _layout("lb_nexthop_key", "u32 ifindex, mac dmac, pad2 pad")
# Neighbours that this agent requested the kernel to keep resolved: only `cleanup` reads it. IPv4 as ::ffff:a.b.c.d.
LB_NEIGHBOR_KEY = _layout("lb_neighbor_key", "u32 ifindex, be128 address")
# An address that a device announces (bpf/include/program/announce.h), IPv4 as ::ffff:a.b.c.d, with its MAC address and its end:
# ns of CLOCK_MONOTONIC. The agent extends `until`.
LB_VIP_KEY = _layout("lb_vip_key", "u32 ifindex, be128 address")
LB_VIP = _layout("lb_vip", "u64 until, mac mac, pad2 pad")
# An address of services (bpf/include/program/echo.h), IPv4 as ::ffff:a.b.c.d. The value is two LB_SERVICE: what slot 0 says of the
# frontend that decides about pings, for clients of outside and of inside; of its count whether it has backends for new flows.
LB_ECHO_KEY = _layout("lb_echo_key", "be128 address")
LB_COUNTER = _layout("lb_counter", "u64 packets, u64 bytes")
# A device with programs, or by which XDP sends, at one of the DEVICE_PROBES positions from `device_position`; ifindex 0 = free.
# The second u64 is stored before the first. Frames for another MAC address are ignored; an unknown device is not checked. mtu 0:
# unknown.
LB_DEVICE = _layout("lb_device", "u32 ifindex, mac mac, u16 flags, u16 mtu, pad2 pad")
# Frozen before the programs are loaded, so the verifier folds every field into the instructions. Masks are entries (slots,
# records) - 1; time-outs are in ticks of 2^jiffies_shift jiffies.
LB_CONFIG = _layout(
    "lb_config",
    "u64 seed0, u64 seed1, u64 flow4_mask, u64 flow6_mask, u64 snat4_mask, u64 snat6_mask, u64 path_mask,"
    "u64 jiffies_shift, u64 snat_port_min, u64 snat_port_max, u64 reject_rate, u64 maglev_size, u64 flags,"
    "u64 timeout_new, u64 timeout_tcp, u64 timeout_udp, u64 timeout_closing, u64 hz,"
    # of the maps that flows and SNAT slots are being moved from; 0: nothing is being moved
    "u64 flow4_old_mask, u64 flow6_old_mask, u64 snat4_old_mask, u64 snat6_old_mask,"
    # lb_metrics: stripes (one per CPU), bytes of a stripe; the longest of the time-outs
    "u64 counter_stripes, u64 counter_stripe_bytes, u64 timeout_longest,"
    # path records between those of a backend with one source address of the node and the next one; 0: no further address
    "u64 extra_snat_stride,"
    # the extra SNAT addresses by number, as the words that a program loads; 0: none has the number
    + ",".join(
        f"u64 extra_snat4_{n}, u64 extra_snat6_{n}_first, u64 extra_snat6_{n}_second"
        for n in range(1, MAX_EXTRA_SNAT + 1)
    )
    # cookie of the network namespace whose sockets are balanced, 0: of none
    + ",u64 netns_cookie"
    # FLOW_LAYOUT of the flow tables and SNAT slots, for agents and tools (pins.py); no program reads it
    + ",u64 flow_layout"
    # the ports at which replies are recognised: snat_port_min to snat_port_max, and those of flows from before a change
    + ",u64 reply_port_min, u64 reply_port_max"
    # a handshake is timed if 32 bits of its flow's number are below this; 0: none is (--handshake-sample)
    + ",u64 handshake_below"
    # lb_events: rings (0: no events are recorded), bytes of a ring, slots of a ring minus 1, refusals a second and CPU
    + ",u64 event_rings, u64 event_ring_bytes, u64 event_mask, u64 event_rate"
    # a packet of the quick path is recorded if 32 random bits are below this, 0: none is; whether also as it leaves
    + ",u64 sample_below, u64 frames_after",
)

# A TCP handshake that waits for its backend's answer; `began` (ns of CLOCK_MONOTONIC) 0: none. `number`: of the flow's key.
# `owner`: backend id, service id, 26 bits of a hash of the client's address, and whether the SYN came again.
LB_HANDSHAKE = _layout("lb_handshake", "u64 number, u64 began, u64 owner")
HANDSHAKE_SERVICE_SHIFT, HANDSHAKE_CLIENT_SHIFT = 20, 36  # the backend id below
HANDSHAKE_BACKEND_MASK = (1 << HANDSHAKE_SERVICE_SHIFT) - 1
HANDSHAKE_REPEATED = 1 << 62
HANDSHAKES = 1 << 13  # places, a power of two
HANDSHAKE_LOST_NS = 10_000_000_000  # without an answer for so long it counts as lost: after the client's third SYN
# What the timed handshakes of a backend id were: how long the done ones took (`le_N`: how many of them up to 2^(6 + N) us, the last
# one: longer; not cumulative), refused and lost ones, repeated SYNs, and how many in a row were not done.
HANDSHAKE_FIRST_BOUND, HANDSHAKE_BOUNDS = 6, 16
LB_TCP = _layout(
    "lb_tcp",
    "u64 sum_us, u32 refused, u32 lost, u32 again, u32 failing,"
    + ",".join(f"u32 le_{n}" for n in range(HANDSHAKE_BOUNDS + 1))
    + ",pad4 pad",
)


# The rules of a Service about its new flows (bpf/include/service/flow_rules.h). The agent writes: limits, 0 for none; the time of
# one flow of new-flow-rate (ns); ticks of slow-start, RULES_*; what is to be added to `opened` - `closed`. The programs count these
# two, and write the rate's bucket. With an L7 proxy no flow is counted: the agent writes into `proxied` how many connections the
# kernel has, less what `admitted` was, and the tick into slow_start; the programs count in `admitted` the SYNs that the proxy got.
LB_RULES = _layout(
    "lb_rules",
    "u32 max_flows, u32 max_per_backend, u64 rate_interval, u32 slow_start, u32 flags, u64 base,"
    "u64 opened, u64 closed, u64 rate_at, u32 proxied, u32 admitted",
)
RULES = 1 << 13  # records of lb_rules, the first one unused
RULES_REJECT = 1  # over-limit: reject
RULES_WEIGHTED = 2  # the backends' weights differ: there is a Maglev table to draw from
PROXIED_VALID = 10  # ticks that `proxied` holds: without an agent, connections to a proxy are not limited
RULES_SCAN, RULES_SCANS = 64, 8  # slots that one run of CALL_CHOOSE searches for a backend that is not full, and runs
# Of a backend id: live flows that the programs count; what is to be added, weight, tick (its low 16 bits) since when a new backend
# is usable, 0: no slow start.
LB_BACKEND_FLOWS = _layout("lb_backend_flows", "u64 live, u32 base, u16 weight, u16 since")
TARGET_RULES = 0x80  # a bit above LBALG in a master entry: the Service has a record in lb_rules


# Data of a run of sweep4/sweep6: buckets to do, half of the counts to count into. One run does SWEEP_STEP buckets, advances `first`
# and reduces `count` (use the kernel's `repeat`); `former`: bit 0: lb_former_backend has entries, bit 1: a Service has rules;
# `live`, which starts at 0 and is also the return value, are live flows. `trusted_until`, 0 before the first run of a sweep, is
# stored at the head of each stripe of lb_metrics after its last one.
SWEEP_STEP = 4  # bounds the loop that the verifier follows: eight cost 0.03 s of CPU more at a start, 32 0.15 s
LB_SWEEP = _layout("lb_sweep", "u64 first, u64 count, u64 half, u64 former, u64 live, u64 trusted_until")


# Data of a run of migrate4/migrate6: positions of the old map to do, what kind (MigrateWhat), `dry`: leave the old map unchanged.
# One run does at most MIGRATE_STEP, advances `first` and reduces `count`. The rest are counts: of flows that found no room
# (`lost`) and of those that changed meanwhile and need a retry.
MIGRATE_STEP = 64
LB_MIGRATE = _layout(
    "lb_migrate", "u64 first, u64 count, u64 what, u64 dry, u64 moved, u64 spilled, u64 lost, u64 again"
)


class MigrateWhat(IntEnum):
    """The kinds of runs of migrate4/migrate6."""

    FLOWS = 1  # entries of the flow table, with their SNAT slots
    SNAT_SLOTS = 2  # SNAT slots that no entry refers to
    STAMPS = 3  # stamps of the buckets with flows in the spill map


# Data of a run of flow_delete4/flow_delete6: `count` records of LB_FLOW_DELETED follow, at most FLOW_DELETE_RECORDS. One run does
# record `next`. `idle_over`: least ticks since the last packet, 0: any; `reset`: clients get RST; `deleted`: a count.
LB_FLOW_DELETE = _layout("lb_flow_delete", "u64 next, u64 count, u64 idle_over, u64 reset, u64 deleted")
# A flow as it was read: its position in the table, or FLOW_DELETE_SPILLED; its value word; its key with generation 0: two words
# (IPv4) or five (IPv6).
LB_FLOW_DELETED = _layout(
    "lb_flow_deleted", "u64 position, u64 value, u64 key0, u64 key1, u64 key2, u64 key3, u64 key4"
)
FLOW_DELETE_RECORDS = 32  # 1.8 KiB: a test run takes a packet of at most a page
FLOW_DELETE_SPILLED = 0xFFFFFFFF


class PathFlag(IntEnum):
    """Bits of lb{4,6}_path.flags; PATH_L4_SHIFT has two more."""

    LIVE = 1  # the backend exists; clear = gone (flows of an older gen are stale, too), or PATH_KEEPS_PORT_SHIFT
    SELECTABLE = 2  # a new flow may take it; clear = maintenance, terminating beside active ones, quarantined
    LOCAL = 4  # on this node: keep the client's address, hand the packet up
    HOST = 8  # the address is the node's own (a socket here, not a pod)
    WAS_LOCAL = 64  # it was LOCAL or KEEPS_POD since it got its id: there may be flows that kept the client's address
    KEEPS_POD = 128  # on another node: a pod of this node keeps its address towards it


PATH_EXTRA_SNAT_SHIFT = 12  # three bits of lb{4,6}_path.nexthop: number of the source address, 0 = the first
# A bit of lb{4,6}_path.nexthop, set in place of PathFlag.LIVE for a backend that exists and keeps the destination port of its flows
# (its own port is 0): so the quick path, which reads only LIVE, leaves them to the slow path.
PATH_KEEPS_PORT_SHIFT = 15
PATH_L4_SHIFT = 4  # two bits of lb{4,6}_path.flags: the backend's protocol, part of the SNAT slot's hash


class PathL4(IntEnum):
    """A protocol as two bits: in lb{4,6}_path.flags, and in the owner word of a flow entry (enum l4 in bpf/include/base/l4.h)."""

    TCP = 0
    UDP = 1
    SCTP = 2
    NONE = 3  # no protocol with ports


# The mark of a socket of the agent's health checks through a frontend: the id of the backend that new flows of it get, in bits 0-13
# and 16-23. Bits 14 and 15 are those of kube-proxy's rules and stay 0.
CHECK_MARK, CHECK_MARK_MASK = 0x4C000000, 0xFF00C000
CHECK_MARK_LOW_BITS = 14
# The mark of a packet that is given to the socket of an L7 proxy: the agent's rule has it routed to this node itself, whatever its
# destination (net/proxy_route.py). No mark of a health check: those have the high byte.
L7_MARK = 0x4C37


class DeviceFlag(IntEnum):
    """Bits of lb_device.flags, by ifindex."""

    POD = 1  # a --pod-device: packets from it have internal scope
    XDP_SEND = 2  # the device accepts frames that XDP sends
    STACKED = 4  # on top of a device with programs: a received packet may be translated already


class ConfigFlag(IntEnum):
    """Bits of lb_config.flags."""

    EXTERNAL_CLUSTERIP = 1
    STRICT_SOURCE = 2
    NEW_FLOWS_SYN = 4
    ANNOUNCE = 8  # requests for the addresses in lb_vip are answered
    POOLS_ALONE = 16  # of the agent, for other agents: no program reads it
    ECHO_REPLY = 32  # pings of the addresses in lb_echo are answered or dropped


# Bytes of an entry, a slot, a spill entry; flow_layout.py has their words.
FLOW4_SIZE, FLOW6_SIZE = (flow_layout.FLOW[family].size for family in Family)
SNAT4_SIZE, SNAT6_SIZE = (flow_layout.SNAT[family].size for family in Family)
SPILL4_KEY, SPILL6_KEY = (8 * flow_layout.SPILL_KEY_WORDS[family] for family in Family)
SPILL_VALUE = flow_layout.SPILL_VALUE.size
FLOW_WAYS = 4  # entries per bucket
NEXTHOPS = 4096  # 12 bits in a flow entry; 0 = unknown
SOCKETS = 1 << 15  # entries of lb4_sock and lb6_sock
STREAMS = 1 << 15  # records of lb4_stream and lb6_stream
NEIGHBORS = (
    1024  # entries of lb_neighbor: twice as many as the agent keeps, as old ones are removed after new ones are written
)
VIPS = 4096  # entries of lb_vip, and of lb_former_leader
FORMER_BACKENDS = 1 << 13  # entries of lb_former_backend: more wait in the agent for the next sweep
FORMER_BACKEND_SHIFT = 32  # its key, u64: service id << this | backend id
FORMER_BACKEND_OF_ALL = 1 << 31  # in its value: connections lose the backend, too, as no Service has it in its slices
STALE_BACKENDS = 1 << 16  # entries of lb_stale_backend: the oldest ones leave for more
DEVICES = 1024  # positions of lb_device
DIRECT_MARKS = 4096  # of lb_direct, u32 each
DEVICE_PROBES = 4
SERVICE_IDS = 1 << 16
PORT_RANGES = 1 << 16  # entries of lb4_port_range and lb6_port_range: 30 at most for a range
SERVICE_NONE = 0  # no frontend's id; for a flow whose frontend is the backend itself (bpf/include/program/direct.h)
FILTER_BITS = 20  # positions of the prefilter
FILTER_DST_BYTES = (1 << FILTER_BITS) // 4  # two bits: VIP; with it SNAT address, without it local backend
FILTER_SRC_BYTES = (1 << FILTER_BITS) // 8  # one bit: local backend; the bit of its neighbour: UDP
# First lb_metrics index of service ids; backends follow. Index 0, of Reason.NONE, holds the tick until which ages are valid.
METRIC_SERVICE = 256
METRIC_BACKEND = METRIC_SERVICE + SERVICE_IDS
DIRECT_BYTES = 1 << 29  # of a map of one value that programs access. Source: BPF_MAX_VAR_OFF, linux/bpf_verifier.h
SCRATCH_SIZE = 256
DATAGRAM_SIZE = 1 << 14  # bytes of lb_datagram: the rest of a datagram while its first fragments are sent
CALLS = 64  # tail call slots per context
CRC32C_SHIFTS = 16  # of lb_crc32c: by 2^n bytes, for each bit of a packet's length
CRC32C_NIBBLES = 8  # four bits each of a CRC
CRC32C_VALUES = 16
CRC32C_SIZE = CRC32C_SHIFTS * CRC32C_NIBBLES * CRC32C_VALUES * 4
CALL_MAPS = ("lb_calls_xdp", "lb_calls_tc")  # one per context with tail calls (bpf/hooks.py)

# The maps of both families, by family.
BACKEND = {Family.IPV4: LB4_BACKEND, Family.IPV6: LB6_BACKEND}
PATH = {Family.IPV4: LB4_PATH, Family.IPV6: LB6_PATH}
SOCK_KEY = {Family.IPV4: LB4_SOCK_KEY, Family.IPV6: LB6_SOCK_KEY}
SOCK_VALUE = {Family.IPV4: LB4_SOCK_VALUE, Family.IPV6: LB6_SOCK_VALUE}
STREAM = {Family.IPV4: LB4_STREAM, Family.IPV6: LB6_STREAM}
PORT_RANGE_KEY = {Family.IPV4: LB4_PORT_RANGE_KEY, Family.IPV6: LB6_PORT_RANGE_KEY}
SOURCE_RANGE_KEY = {Family.IPV4: LB4_SOURCE_RANGE_KEY, Family.IPV6: LB6_SOURCE_RANGE_KEY}
LAYOUTS: tuple[Layout, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Layout))


def device_position(ifindex: int, probe: int) -> int:
    """Return the position in lb_device of the n-th probe (0 .. DEVICE_PROBES - 1)."""
    return (ifindex + probe) & (DEVICES - 1)
