"""Backend <-> map entries: the row of lb{4,6}_backend and the record of lb{4,6}_path. Pure."""

from __future__ import annotations

from msgspec import Struct

from lbagent.maps import prefilter
from lbagent.maps.layout import (
    HOST_ORDER,
    LB4_BACKEND,
    LB4_PATH,
    LB6_BACKEND,
    LB6_PATH,
    NEXTHOPS,
    PATH_FURTHER_SHIFT,
    PATH_L4_SHIFT,
    PathFlag,
    PathL4,
)
from lbagent.maps.lbmaps import PathInfo
from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.backend import Backend, BackendState
from lbagent.model.further_sources import FurtherAddress

# Plain ints: 100,000 records are made at a start.
_LIVE, _SELECTABLE, _LOCAL, _HOST, _WAS_LOCAL, _KEEPS_POD = map(int, PathFlag)
_L4_MASK, _TCP, _UDP = (kind << PATH_L4_SHIFT for kind in (max(PathL4), PathL4.TCP, PathL4.UDP))
_ANY_KEPT = _LOCAL | _WAS_LOCAL | _KEEPS_POD
_L4_FLAGS = {protocol: PathL4[protocol.name] << PATH_L4_SHIFT for protocol in L4Type}


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
    further: int = 0  # number of the source address `snat`; 0: the first

    @property
    def live(self) -> bool:
        """Whether the backend exists."""
        return bool(self.flags & PathFlag.LIVE)

    @property
    def protocol(self) -> PathL4:
        """The backend's protocol."""
        return PathL4(self.flags >> PATH_L4_SHIFT & max(PathL4))


def path_value(backend: Backend, info: PathInfo, gen: int, *, selectable: bool, was_local: bool = False) -> bytes:
    """Return the live record of a backend; `was_local`: flows may live that kept the client's address."""
    address = backend.address
    flags = _LIVE
    flags |= _SELECTABLE if selectable else 0
    flags |= _LOCAL if info.local else _KEEPS_POD if info.keeps_pod else _WAS_LOCAL if was_local else 0
    flags |= _HOST if info.host else 0
    flags |= _L4_FLAGS[address.protocol]
    raw, port = address.address, address.port.to_bytes(2, "big")
    snat = info.snat if len(info.snat) == len(raw) else bytes(len(raw))
    if len(raw) == 4:
        return LB4_PATH.codec.pack(raw, snat, port, gen, flags, info.nexthop, info.mtu)
    return LB6_PATH.codec.pack(raw, snat, port, gen, flags, info.nexthop, info.mtu, b"")


def may_keep_client(flags: int) -> bool:
    """Whether packets of the backend of a path record with these flags may be replies of flows that kept the client's address."""
    return bool(flags & _LIVE and flags & _ANY_KEPT)


def local_bits(address: bytes, flags: int) -> tuple[int, ...]:
    """Return the prefilter's bits that a backend with these flags of its path record needs.

    They are that of its replies, and of a pod those of what is sent to it directly (docs/datapath.md, "Direct conversations").
    A remote backend needs them where pods of this node keep their address.
    """
    if not may_keep_client(flags):
        return ()
    replies, direct = prefilter.source_bit(address), prefilter.direct_bit(address)
    if flags & _HOST or flags & _L4_MASK not in (_TCP, _UDP):
        return (replies,)
    return (replies, direct) if flags & _L4_MASK == _TCP else (replies, direct, prefilter.datagram_bit(address))


def filter_bits(record: bytes) -> tuple[int, ...]:
    """Return `local_bits` of a path record."""
    flags = record[FLAGS_AT[len(record)]]
    if not flags & _ANY_KEPT:
        return ()
    return local_bits(record[:4] if len(record) == LB4_PATH.size else record[:16], flags)


def further_value(record: bytes, source: FurtherAddress, gen: int) -> bytes:
    """Return the record by which a backend with this live `record` is reached from a further source address.

    No flow that keeps the client's address has it, so what concerns these alone is not in its flags.
    """
    at, width = META_AT[len(record)], len(source.address)
    flags = record[at + 3] & ~(_HOST | _ANY_KEPT) & (0xFF if source.present else ~_SELECTABLE)
    nexthop = int.from_bytes(record[at + 4 : at + 6], HOST_ORDER) | source.number << PATH_FURTHER_SHIFT
    meta = record[at : at + 2] + bytes((gen, flags)) + nexthop.to_bytes(2, HOST_ORDER) + record[at + 6 : at + 8]
    return record[:width] + source.address + meta + record[at + 8 :]


def further_number(record: bytes) -> int:
    """Return the number of the source address that a record, live or not, is for; 0 of a backend's first one."""
    at = META_AT[len(record)] + 4
    return int.from_bytes(record[at : at + 2], HOST_ORDER) >> PATH_FURTHER_SHIFT


def path_tombstone(record: bytes) -> bytes:
    """Return the record of a backend taken away: not live, next generation, so that no flow takes a later one for it.

    It keeps the number of its source address: by that its counters are still found.
    """
    at = META_AT[len(record)]
    number = (further_number(record) << PATH_FURTHER_SHIFT).to_bytes(2, HOST_ORDER)
    meta = record[at : at + 2] + bytes(((record[at + 2] + 1) & 0xFF, 0)) + number + bytes(2)
    return record[:at] + meta + record[at + 8 :]


def path_of(record: bytes) -> PathRecord:
    """Take a record apart."""
    layout = LB4_PATH if len(record) == LB4_PATH.size else LB6_PATH
    address, snat, port, gen, flags, nexthop, mtu = layout.codec.unpack(record)[:7]
    hop, further = nexthop % NEXTHOPS, nexthop >> PATH_FURTHER_SHIFT
    return PathRecord(address, snat, int.from_bytes(port, "big"), gen, flags, hop, mtu, further)


# Where the meta word (port, gen, flags, nexthop, mtu) lies, by record size: one aligned store publishes it.
META_AT = {LB4_PATH.size: LB4_PATH.offsets()["port"], LB6_PATH.size: LB6_PATH.offsets()["port"]}
FLAGS_AT = {size: at + 3 for size, at in META_AT.items()}
GEN_AT = {size: at + 2 for size, at in META_AT.items()}
