"""Backend <-> map entries: the value of lb{4,6}_backend and the record of lb{4,6}_path. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from msgspec import Struct

from lbagent.maps import prefilter
from lbagent.maps.layout import (
    CHECK_MARK,
    CHECK_MARK_LOW_BITS,
    HOST_ORDER,
    LB4_BACKEND,
    LB4_PATH,
    LB6_PATH,
    NEXTHOPS,
    PATH_EXTRA_SNAT_SHIFT,
    PATH_KEEPS_PORT_SHIFT,
    PATH_L4_SHIFT,
    PathFlag,
    PathL4,
)
from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.backend import Backend, BackendState
from lbagent.model.extra_snat_sources import ExtraSnatAddress
from lbagent.model.path_info import PathInfo

# Plain ints: 100,000 records are made at a start.
_LIVE, _SELECTABLE, _LOCAL, _HOST, _WAS_LOCAL, _KEEPS_POD = map(int, PathFlag)
_L4_MASK, _TCP, _UDP = (kind << PATH_L4_SHIFT for kind in (max(PathL4), PathL4.TCP, PathL4.UDP))
_EXTERNAL = Scope.EXTERNAL
_KEEPS_PORT = 1 << PATH_KEEPS_PORT_SHIFT
_EXTRA_SNAT_MASK = (_KEEPS_PORT >> PATH_EXTRA_SNAT_SHIFT) - 1
_ANY_KEPT = _LOCAL | _WAS_LOCAL | _KEEPS_POD
_L4_FLAGS = {protocol: PathL4[protocol.name] << PATH_L4_SHIFT for protocol in L4Type}


def backend_value(address: L3n4Addr, state: BackendState) -> bytes:
    """Return the value of a backend. The zone byte stays 0: zone names have no numbers of their own (docs/maps.md)."""
    return address.address + _after_address(address.port, address.protocol, address.cluster_id, state)


@lru_cache(maxsize=1024)
def _after_address(port: int, protocol: L4Type, cluster: int, state: BackendState) -> bytes:
    """Return the bytes after the address in a backend's value, in both families: 100,000 backends have few ports and states."""
    row = LB4_BACKEND.codec.pack(bytes(4), port.to_bytes(2, "big"), protocol.number, state.to_flags(), cluster, 0, b"")
    return row[4:]


def backend_of(value: bytes) -> tuple[L3n4Addr, BackendState]:
    """Return address and state of a backend's value."""
    width = 4 if len(value) == LB4_BACKEND.size else 16
    port, protocol, cluster, state = _read_after_address(value[width:])
    return L3n4Addr(value[:width], port, protocol, _EXTERNAL, cluster), state


@lru_cache(maxsize=1024)
def _read_after_address(end: bytes) -> tuple[int, L4Type, int, BackendState]:
    """Decode what `_after_address` encodes."""
    _, port, number, flags, cluster, _, _ = LB4_BACKEND.codec.unpack(bytes(4) + end)
    return int.from_bytes(port, "big"), L4Type.from_number(number), cluster, BackendState.from_flags(flags)


class PathRecord(Struct, frozen=True, gc=False):
    """A decoded path record."""

    address: bytes
    snat: bytes
    port: int
    gen: int
    flags: int
    nexthop: int
    mtu: int
    extra_snat: int = 0  # number of the source address `snat`; 0: the first
    keeps_port: bool = False  # packets keep their destination port

    @property
    def live(self) -> bool:
        """Whether the backend exists."""
        return bool(self.flags & PathFlag.LIVE)

    @property
    def protocol(self) -> PathL4:
        """The backend's protocol."""
        return PathL4(self.flags >> PATH_L4_SHIFT & max(PathL4))


def path_value(backend: Backend, info: PathInfo, gen: int, *, selectable: bool, was_local: bool = False) -> bytes:
    """Return the live record of a backend; `was_local`: there may be flows that kept the client's address."""
    address = backend.address
    keeps_port = not address.port  # then the bit beside the next hop stands for LIVE (layout.py)
    flags = 0 if keeps_port else _LIVE
    flags |= _SELECTABLE if selectable else 0
    flags |= _LOCAL if info.local else _KEEPS_POD if info.keeps_pod else _WAS_LOCAL if was_local else 0
    flags |= _HOST if info.host else 0
    flags |= _L4_FLAGS[address.protocol]
    raw, port = address.address, address.port.to_bytes(2, "big")
    snat = info.snat if len(info.snat) == len(raw) else bytes(len(raw))
    hop = info.nexthop | (_KEEPS_PORT if keeps_port else 0)
    if len(raw) == 4:
        return LB4_PATH.codec.pack(raw, snat, port, gen, flags, hop, info.mtu)
    return LB6_PATH.codec.pack(raw, snat, port, gen, flags, hop, info.mtu, b"")


def path_flags(record: bytes) -> int:
    """Return the flags of a record, with LIVE also where the bit beside the next hop stands for it."""
    at = FLAGS_AT[len(record)]
    return record[at] | (_LIVE if record[at + _HIGH_HOP_BYTE] & _KEEPS_PORT >> 8 else 0)


def flags_of_each(records: bytes | bytearray | memoryview, size: int) -> bytes:
    """Return the flags of packed records as `path_flags` does."""
    at = FLAGS_AT[size]
    flags, hops = bytes(records[at::size]), bytes(records[at + _HIGH_HOP_BYTE :: size])
    live = _KEEPS_PORT >> 8
    if max(hops, default=0) < live:  # nearly always: no backend is behind a range of ports
        return flags
    return bytes([flag | (_LIVE if hop & live else 0) for flag, hop in zip(flags, hops, strict=True)])


_HIGH_HOP_BYTE = 1 + (HOST_ORDER == "little")  # behind the flags: the upper byte of the next hop


def is_live(record: bytes) -> bool:
    """Return whether the backend of a path record exists."""
    return bool(path_flags(record) & _LIVE)


def may_keep_client(flags: int) -> bool:
    """Whether packets of a backend with these path flags may be replies of flows that kept the client's address."""
    return bool(flags & _LIVE and flags & _ANY_KEPT)


def local_bits(address: bytes, flags: int) -> tuple[int, ...]:
    """Return the prefilter's bits for a backend with these flags of its path record.

    The bits cover its replies, and for a pod also packets sent to it directly (docs/datapath.md, "Direct conversations"). A
    remote backend needs them where pods of this node keep their address.
    """
    kinds = _bit_kinds(flags)
    if not kinds:
        return ()
    positions = (prefilter.filter_position(address),)
    return tuple([bits(positions)[0] for bits in kinds])


@lru_cache(maxsize=256)
def _bit_kinds(flags: int) -> tuple[Callable[[Sequence[int]], list[int]], ...]:
    if not may_keep_client(flags):
        return ()
    if flags & _HOST or flags & _L4_MASK not in (_TCP, _UDP):
        return (prefilter.source_bits,)
    for_tcp = (prefilter.source_bits, prefilter.direct_bits)
    return for_tcp if flags & _L4_MASK == _TCP else (*for_tcp, prefilter.datagram_bits)


def filter_bits(record: bytes) -> tuple[int, ...]:
    """Return `local_bits` of a path record."""
    flags = path_flags(record)
    if not flags & _ANY_KEPT:
        return ()
    return local_bits(record[:4] if len(record) == LB4_PATH.size else record[:16], flags)


def filter_bits_of_each(records: bytes | bytearray, size: int, *, once: bool = False) -> list[int]:
    """Return the prefilter's bits for packed path records of one size: those of each, so some are repeated.

    `once`: without repetition.
    """
    column = flags_of_each(records, size)
    by_flags = {flags: kinds for flags in set(column) if (kinds := _bit_kinds(flags))}
    if not by_flags:
        return []
    is_one_kind = len(by_flags) == len(set(column)) == 1
    positions = prefilter.filter_positions(records, size, 4 if size == LB4_PATH.size else 16, once=once and is_one_kind)
    out: list[int] = []
    for flags, kinds in by_flags.items():
        same = positions if is_one_kind else [at for at, each in zip(positions, column, strict=True) if each == flags]
        for bits in kinds:
            out += bits(same)
    return out


def extra_snat_value(record: bytes, source: ExtraSnatAddress, gen: int) -> bytes:
    """Return the record of a backend with this live `record` for an extra SNAT address.

    No flow that keeps the client's address uses it, so its flags omit what concerns only those.
    """
    at, width = META_AT[len(record)], len(source.address)
    flags = record[at + 3] & ~(_HOST | _ANY_KEPT) & (0xFF if source.present else ~_SELECTABLE)
    nexthop = int.from_bytes(record[at + 4 : at + 6], HOST_ORDER) | source.number << PATH_EXTRA_SNAT_SHIFT
    meta = record[at : at + 2] + bytes((gen, flags)) + nexthop.to_bytes(2, HOST_ORDER) + record[at + 6 : at + 8]
    return record[:width] + source.address + meta + record[at + 8 :]


def extra_snat_number(record: bytes) -> int:
    """Return the number of the source address of a record, live or not; 0 for a backend's first one."""
    at = META_AT[len(record)] + 4
    return int.from_bytes(record[at : at + 2], HOST_ORDER) >> PATH_EXTRA_SNAT_SHIFT & _EXTRA_SNAT_MASK


def extra_snat_count(records: bytes, size: int) -> int:
    """Return how many of the packed path records are live ones of extra SNAT addresses."""
    high = META_AT[size] + 4 + (HOST_ORDER == "little")  # the byte of `nexthop` with the number
    column = records[high::size]
    if max(column, default=0) < 1 << PATH_EXTRA_SNAT_SHIFT - 8:
        return 0
    flags = flags_of_each(records, size)
    number = _EXTRA_SNAT_MASK << PATH_EXTRA_SNAT_SHIFT - 8
    return sum(bool(flag & _LIVE and byte & number) for flag, byte in zip(flags, column, strict=True))


def path_tombstone(record: bytes) -> bytes:
    """Return the record of a removed backend: not live, next generation, so that no flow takes a later one for it.

    It keeps the number of its source address, by which its counters are found.
    """
    at = META_AT[len(record)]
    number = (extra_snat_number(record) << PATH_EXTRA_SNAT_SHIFT).to_bytes(2, HOST_ORDER)
    meta = record[at : at + 2] + bytes(((record[at + 2] + 1) & 0xFF, 0)) + number + bytes(2)
    return record[:at] + meta + record[at + 8 :]


def path_of(record: bytes) -> PathRecord:
    """Decode a record."""
    layout = LB4_PATH if len(record) == LB4_PATH.size else LB6_PATH
    address, snat, port, gen, _, nexthop, mtu = layout.codec.unpack(record)[:7]
    flags = path_flags(record)
    hop, extra_snat = nexthop % NEXTHOPS, nexthop >> PATH_EXTRA_SNAT_SHIFT & _EXTRA_SNAT_MASK
    return PathRecord(
        address, snat, int.from_bytes(port, "big"), gen, flags, hop, mtu, extra_snat, bool(nexthop & _KEEPS_PORT)
    )


class PathRecords:
    """Makes the records of backends that were never local: the bytes after the address have few different values."""

    def __init__(self) -> None:
        # Includes the PathInfo, so that its id stays unique as long as the record is kept.
        self._ends: dict[tuple[int, int, int, L4Type, int, bool], tuple[PathInfo, bytes]] = {}

    def make(self, backend: Backend, info: PathInfo, gen: int, *, selectable: bool) -> bytes:
        """Return the same as `path_value`."""
        address = backend.address
        key = (id(info), len(address.address), address.port, address.protocol, gen, selectable)
        known = self._ends.get(key)
        if known is None:
            record = path_value(backend, info, gen, selectable=selectable)
            known = self._ends[key] = (info, record[len(address.address) :])
        return address.address + known[1]


def new_entries(
    ends: PathRecords, backends: Iterable[tuple[Backend, PathInfo, tuple[BackendState, bool]]]
) -> tuple[list[bytes], list[bytes]]:
    """Return values and first path records of backends of one family, given with path, state and whether new flows use it.

    The bytes after the address are the same for consecutive backends of a port: they are looked up once.
    """
    rows: list[bytes] = []
    records: list[bytes] = []
    row_end = record_end = b""
    last_info, last_state, last_port, last_protocol, last_cluster = None, None, -1, L4Type.NONE, 0
    for backend, info, state in backends:
        address = backend.address
        raw, port, protocol, cluster = address.address, address.port, address.protocol, address.cluster_id
        is_alike = info is last_info and state is last_state and port == last_port and protocol is last_protocol
        if not is_alike or cluster != last_cluster:
            last_info, last_state, last_port, last_protocol, last_cluster = info, state, port, protocol, cluster
            width = len(raw)
            row_end = backend_value(address, state[0])[width:]
            record_end = ends.make(backend, info, 0, selectable=state[1])[width:]
        rows.append(raw + row_end)
        records.append(raw + record_end)
    return rows, records


def with_selectable(record: bytes, flags_at: int, selectable: bool) -> bytes:
    """Return the record with or without PathFlag.SELECTABLE."""
    flags = record[flags_at] & ~_SELECTABLE | (_SELECTABLE if selectable else 0)
    return record[:flags_at] + bytes((flags,)) + record[flags_at + 1 :]


def endpoint(record: bytes) -> tuple[bytes, int, int, bytes]:
    """Return the target of the record's flows. Its source address may change only in a backend's first record."""
    path = path_of(record)
    return path.address, path.port, path.protocol, path.snat if path.extra_snat else b""


# Offset of the meta word (port, gen, flags, nexthop, mtu), by record size: one aligned store publishes it.
META_AT = {LB4_PATH.size: LB4_PATH.offsets()["port"], LB6_PATH.size: LB6_PATH.offsets()["port"]}
FLAGS_AT = {size: at + 3 for size, at in META_AT.items()}
GEN_AT = {size: at + 2 for size, at in META_AT.items()}


def check_mark(backend: int) -> int:
    """Return the mark of a socket of a health check, whose flow goes to the backend with this id."""
    low = backend & ((1 << CHECK_MARK_LOW_BITS) - 1)
    return CHECK_MARK | low | backend >> CHECK_MARK_LOW_BITS << 16
