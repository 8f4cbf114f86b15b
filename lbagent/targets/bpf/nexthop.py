"""The table of next hops: a 12-bit index for each resolved neighbour, so that programs forward without a FIB look-up.

A record is immutable while its index is in use: programs and flows keep the index, so a new MAC or route gets a new index.
`ifindex` 0 retires a record: a program that still holds the index looks up the FIB and learns a new one. A retired index is
reused only after the longest flow time-out, when no flow can hold it any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from lbagent.maps import layout
from lbagent.maps.lbmaps import LBMaps
from lbagent.net.paths import Hop, is_pod_device
from lbagent.net.routes import changed_prefixes, contains
from lbagent.net.snapshot import NodeNetwork

MAP, ID_MAP = "lb_nexthop", "lb_nexthop_id"
RECORD = layout.LB_NEXTHOP
CAPACITY = layout.NEXTHOPS - 1  # index 0 means unknown


class Record(NamedTuple):
    """One next hop for the programs. `xdp`: XDP may send frames by this device (xdp_output.py); else they go by tc."""

    dmac: bytes
    smac: bytes
    ifindex: int
    xdp: bool = True

    def pack(self) -> bytes:
        """Return the map's record."""
        return RECORD.pack(self.dmac, self.smac, self.ifindex | (0 if self.xdp else layout.NEXTHOP_NO_XDP))


class NextHopTable:
    """Owner of lb_nexthop and lb_nexthop_id. `now` is seconds of any clock that does not go back."""

    def __init__(self, maps: LBMaps, reuse_after_s: float) -> None:
        """`reuse_after_s` is the time after which no flow holds a retired index."""
        self._maps = maps
        self._reuse_after_s = reuse_after_s
        self._records: dict[int, Record] = {}
        self._index: dict[Record, int] = {}
        self._hops: dict[Hop, int] = {}
        self._retired: deque[tuple[float, int]] = deque()
        self._fresh = iter(range(1, CAPACITY + 1))
        self.no_xdp: Collection[int] = frozenset()  # devices that accept no frames from XDP
        self.full = False
        self.capacity = CAPACITY

    def restore(self, now: float) -> None:
        """Load the records that an earlier agent published."""
        used = set()
        with self._maps.window(MAP, 0, layout.NEXTHOPS * RECORD.size) as view:
            data = bytes(view)
        size, empty = RECORD.size, bytes(RECORD.size)
        for index in range(1, CAPACITY + 1):
            packed = data[index * size : (index + 1) * size]
            if packed == empty:  # most of them
                continue
            dmac, smac, ifindex = RECORD.unpack(packed)
            assert isinstance(dmac, bytes)
            assert isinstance(smac, bytes)
            assert isinstance(ifindex, int)
            if ifindex:
                xdp = not ifindex & layout.NEXTHOP_NO_XDP
                self._records[index] = Record(dmac, smac, ifindex & ~layout.NEXTHOP_NO_XDP, xdp)
            elif any(dmac):
                self._retired.append((now, index))
            else:
                continue
            used.add(index)
        self._index = {record: index for index, record in self._records.items()}
        self.no_xdp = frozenset(record.ifindex for record in self._records.values() if not record.xdp)
        self._fresh = iter([index for index in range(1, CAPACITY + 1) if index not in used])
        self._repair_ids()

    def _repair_ids(self) -> None:
        """Repair what an agent killed between two writes left: ids without a record, records without an id."""
        wanted = {_id_key(record): index.to_bytes(4, "little") for index, record in self._records.items()}
        found = dict(self._maps.items(ID_MAP))
        self._maps.delete_many(ID_MAP, [key for key in found if key not in wanted])
        self._maps.put_many(ID_MAP, [item for item in wanted.items() if found.get(item[0]) != item[1]])

    def index_of(self, hop: Hop) -> int:
        """Return the index of a neighbour, 0 when it is not resolved or the table is full."""
        return self._hops.get(hop, 0)

    @property
    def used(self) -> int:
        """Number of indexes in use."""
        return len(self._records)

    def update(self, network: NodeNetwork, wanted: Iterable[Hop], outdated: Iterable[Hop], now: float) -> bool:
        """Follow the network: retire outdated or removed hops, publish new ones; return whether any neighbour's index changed.

        `wanted` neighbours (of backends) get an index first when the table is nearly full; `outdated` are those whose routes
        changed (`outdated_hops`).
        """
        current = resolved_hops(network, self.no_xdp)
        stale = {self._hops[hop] for hop in outdated if hop in self._hops}
        alive = set(current.values())
        gone = [i for i, record in self._records.items() if i in stale or record not in alive]
        self._retire(gone, now)
        first = [hop for hop in wanted if hop in current]
        order = dict.fromkeys([*first, *current])
        fresh: dict[Record, int] = {}
        hops: dict[Hop, int] = {}
        for hop in order:
            record = current[hop]
            index = self._index.get(record) or fresh.get(record) or self._take(now)
            if index and record not in self._index:
                fresh[record] = index
            if index:
                hops[hop] = index
        self.full = len(hops) < len(order)
        self._publish(fresh)
        changed = hops != self._hops
        self._hops = hops
        return changed

    def _take(self, now: float) -> int:
        index = next(self._fresh, 0)
        if not index and self._retired and now - self._retired[0][0] >= self._reuse_after_s:
            index = self._retired.popleft()[1]
        return index

    def _publish(self, fresh: Mapping[Record, int]) -> None:
        """Write the whole records, then make them findable."""
        if not fresh:
            return
        words = []
        for record, index in fresh.items():
            data, at = record.pack(), index * RECORD.size
            words += [(at, data[:8]), (at + 8, data[8:])]  # the second holds ifindex: only then is the record in use
        self._maps.store(MAP, words)
        keys = [(_id_key(record), index.to_bytes(4, "little")) for record, index in fresh.items()]
        self._maps.put_many(ID_MAP, keys)
        for record, index in fresh.items():
            self._records[index] = record
            self._index[record] = index

    def _retire(self, indexes: Sequence[int], now: float) -> None:
        if not indexes:
            return
        self._maps.delete_many(ID_MAP, [_id_key(self._records[index]) for index in indexes])
        at = {index: index * RECORD.size + RECORD.size - 8 for index in indexes}
        retired = {index: self._records[index]._replace(ifindex=0, xdp=True) for index in indexes}
        self._maps.store(MAP, [(at[index], retired[index].pack()[8:]) for index in indexes])
        for index in indexes:
            self._index.pop(self._records.pop(index), None)
            self._retired.append((now, index))


def _id_key(record: Record) -> bytes:
    return layout.LB_NEXTHOP_KEY.pack(record.ifindex, record.dmac, b"")


def resolved_hops(network: NodeNetwork, no_xdp: Collection[int] = ()) -> dict[Hop, Record]:
    """Return the neighbours to which frames can be sent now, `no_xdp`: by tc alone."""
    out = {}
    for (ifindex, address), mac in network.neighbours.items():
        link = network.links.get(ifindex)
        if link is not None and link.up and len(link.mac) == 6:
            out[ifindex, address] = Record(mac, link.mac, ifindex, ifindex not in no_xdp)
    return out


def outdated_hops(old: NodeNetwork, new: NodeNetwork, pod_devices: tuple[str, ...]) -> set[Hop]:
    """Return the neighbours that flows may have learned as a path which the new routes no longer have.

    A new route to a pod of this node is left out: flows to that address had no other path before.
    """
    out: set[Hop] = set()
    for before, after in ((old.routes4, new.routes4), (old.routes6, new.routes6)):
        for network, bits in changed_prefixes(before, after):
            was, now = before.lookup(network), after.exact(network, bits)
            link = new.links.get(now.ifindex) if now else None
            if was is None or (before.exact(network, bits) is None and link and is_pod_device(link.name, pod_devices)):
                continue
            if was.gateway:
                out.add((was.ifindex, was.gateway))
            else:
                out |= {hop for hop in old.neighbours if hop[0] == was.ifindex and contains(network, bits, hop[1])}
    return out


def device_macs(maps: LBMaps) -> dict[int, bytes]:
    """Return the MAC addresses of the devices of published next hops, by index."""
    with maps.window(MAP, 0, layout.NEXTHOPS * RECORD.size) as view:
        data = bytes(view)
    out: dict[int, bytes] = {}
    for at in range(RECORD.size, len(data), RECORD.size):
        _, smac, ifindex = RECORD.unpack(data[at : at + RECORD.size])
        assert isinstance(smac, bytes)
        assert isinstance(ifindex, int)
        if ifindex:
            out[ifindex & ~layout.NEXTHOP_NO_XDP] = smac
    return out
