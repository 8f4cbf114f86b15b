"""Backend <-> map entries: the row of lb{4,6}_backend and the record of lb{4,6}_path. Pure."""

from __future__ import annotations

from msgspec import Struct

from lbagent.maps.layout import LB4_BACKEND, LB4_PATH, LB6_BACKEND, LB6_PATH, PATH_L4_SHIFT, PathFlag, PathL4
from lbagent.maps.lbmaps import PathInfo
from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.backend import Backend, BackendState

_LIVE, _SELECTABLE, _LOCAL, _HOST, _WAS_LOCAL = map(int, PathFlag)  # plain ints: 100,000 records are made at a start
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

    @property
    def live(self) -> bool:
        """Whether the backend exists."""
        return bool(self.flags & PathFlag.LIVE)

    @property
    def protocol(self) -> PathL4:
        """The backend's protocol."""
        return PathL4(self.flags >> PATH_L4_SHIFT & max(PathL4))


def path_value(backend: Backend, info: PathInfo, gen: int, *, selectable: bool, was_local: bool = False) -> bytes:
    """Return the live record of a backend; `was_local`: flows may live that were made while it was local."""
    address = backend.address
    flags = _LIVE
    flags |= _SELECTABLE if selectable else 0
    flags |= _LOCAL if info.local else _WAS_LOCAL if was_local else 0
    flags |= _HOST if info.host else 0
    flags |= _L4_FLAGS[address.protocol]
    raw, port = address.address, address.port.to_bytes(2, "big")
    snat = info.snat if len(info.snat) == len(raw) else bytes(len(raw))
    if len(raw) == 4:
        return LB4_PATH.codec.pack(raw, snat, port, gen, flags, info.nexthop, info.mtu)
    return LB6_PATH.codec.pack(raw, snat, port, gen, flags, info.nexthop, info.mtu, b"")


def replies_are_local(flags: int) -> bool:
    """Whether packets of the backend of a path record with these flags may be replies of flows that kept the client's address."""
    return bool(flags & _LIVE and flags & (_LOCAL | _WAS_LOCAL))


def path_tombstone(record: bytes) -> bytes:
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
