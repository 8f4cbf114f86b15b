"""Read flows from the flow tables and the spill maps while the kernel's programs write them. Nothing is written.

An entry is consistent if its words carry one generation; IPv6 addresses carry none, so the owner word is read again after them,
as the programs do (ct_entry.h). An entry that changes while it is read is read again, a bounded number of times, and then left
out, as it is being replaced. The table is read in pieces, so that a caller on an event loop can yield between pieces.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress, repeat
from operator import rshift

from msgspec import Struct

from lbagent.maps.flow_layout import (
    FLOW,
    FORWARD_MODE_SHIFT,
    FORWARD_PORT_BITS,
    HANDSHAKE_ANSWERED,
    HANDSHAKE_OLDER,
    OWNER_HELD_SHIFT,
    REPLY_MARK,
    FlowState,
    ForwardMode,
)
from lbagent.maps.layout import NEXTHOPS, PathL4, is_zero
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_map
from lbagent.model.family import Family

PIECE_ENTRIES = 1 << 14  # entries read at once: 1 ms or less where none is held, 20 ms where all are
MAX_READS = 3  # of an entry that changes while it is read

GENERATION = FLOW[Family.IPV4].fields["generation"].mask
_SWAP = tuple((port & 0xFF) << 8 | port >> 8 for port in range(1 << 16))  # a port as stored in a word -> host order


class FlowEntry(Struct, frozen=True, gc=False):
    """One flow. Addresses are packed, ports host order, `last_seen` ticks modulo 2^16.

    `mode` is a ForwardMode. `snat_port` 0: none, or a flow of mode SNAT that waits for its port. `client_hop` 0: not learned.
    """

    family: Family
    l4: PathL4
    client: bytes
    client_port: int
    vip: bytes
    vip_port: int
    service: int
    backend: int
    backend_generation: int
    state: FlowState
    fin: int
    snat_port: int
    mode: int
    last_seen: int
    client_hop: int
    spilled: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it counts as a flow of its backend: it has one, and is not closing."""
        return self.state is not FlowState.CLOSING and self.backend != 0


_STATES = tuple(FlowState)
_L4 = tuple(PathL4)
# Fields of the value word, which both families have at the same bits.
_VALUE = FLOW[Family.IPV4].fields
_BACKEND, _BACKEND_GENERATION, _FORWARD, _FIN, _STATE, _L4_SHIFT = (
    _VALUE[name].shift for name in ("backend", "backend_generation", "forward", "fin", "state", "l4")
)
# The words of flow_layout.py as the struct module reads them at once: generation with l4, ports as stored, addresses as bytes.
_ENTRY = {
    Family.IPV4: struct.Struct("=HH4sHH4sQHHHH"),
    Family.IPV6: struct.Struct("=HHHH16s16sQHHHHQ"),
}
_KEY = {Family.IPV4: struct.Struct("=HH4sHH4s"), Family.IPV6: struct.Struct("=HHHH16s16s")}
_VALUE_AND_SEEN = struct.Struct("=QHHHH")
_FREE = bytes(4)
# By the 16 bits of the value word with the state: whether the flow is not closing.
_IS_LIVE = tuple(number >> _STATE % 16 & 3 != FlowState.CLOSING for number in range(1 << 16))


Pair = tuple[int, int]  # service id and backend id of a flow


def flows(maps: LBMaps, family: Family) -> Iterator[Sequence[FlowEntry]]:
    """Yield the flows of a family: piece by piece of the table, the spilled ones last. Raises KernelError."""
    for view in _pieces(maps, family):
        yield _decode(family, view)
    yield spilled_flows(maps, family)


def spilled_flows(maps: LBMaps, family: Family) -> list[FlowEntry]:
    """Return the flows of the spill map; rows for replies are no flows. Raises KernelError."""
    return [flow for flow, _, _ in spilled_rows(maps, family)]


def spilled_rows(maps: LBMaps, family: Family) -> list[tuple[FlowEntry, bytes, bytes]]:
    """Return the flows of the spill map, each with the key and the value of its row. Raises KernelError."""
    rows = maps.items(family_map(family, "spill"))
    return [(flow, key, value) for key, value in rows if (flow := _spilled(family, key, value))]


def udp_pairs(maps: LBMaps, family: Family) -> Iterator[set[Pair]]:
    """Yield the pairs of UDP flows: piece by piece of the table, the spilled ones last. Raises KernelError."""
    record = FLOW[family]
    l4, backend, service = record.fields["l4"], record.fields["backend"], record.fields["service"]
    udp, step = PathL4.UDP << l4.shift, record.words
    for view in _pieces(maps, family):
        piece = bytes(view)
        if is_zero(piece):
            yield set()
            continue
        words = memoryview(piece).cast("Q")
        columns = (words[at::step].tolist() for at in (0, backend.word, service.word))
        yield {
            (service.of(seen), backend.of(value))
            for owner, value, seen in zip(*columns, strict=True)
            if owner >> OWNER_HELD_SHIFT and owner & l4.mask == udp
        }
    yield {(flow.service, flow.backend) for flow in spilled_flows(maps, family) if flow.l4 is PathL4.UDP}


def count(maps: LBMaps, family: Family) -> Counter[int]:
    """Return how many flows that are not closing each backend id has, in the table and the spill map. Raises KernelError."""
    record = FLOW[family]
    backend, state = record.fields["backend"], record.fields["state"]
    found: Counter[int] = Counter()
    for view in _pieces(maps, family):
        piece = bytes(view)
        if is_zero(piece):
            continue
        # No step of Python for each of two million entries: parts of the words, which are small numbers. An entry is held if it has
        # a client's address (IPv4) or ports (IPv6).
        halves, quarters = memoryview(piece).cast("I"), memoryview(piece).cast("H")
        held = halves[_part(0, OWNER_HELD_SHIFT + 16, 32) :: 2 * record.words].tolist()
        backends = halves[_part(backend.word, backend.shift, 32) :: 2 * record.words].tolist()
        states = quarters[_part(state.word, state.shift, 16) :: 4 * record.words].tolist()
        live = map(_IS_LIVE.__getitem__, compress(states, held))
        found.update(map(rshift, compress(compress(backends, held), live), repeat(backend.shift - 32)))
    found.update(flow.backend for flow in spilled_flows(maps, family) if flow.is_live)
    del found[0]
    return found


def _part(word: int, shift: int, bits: int) -> int:
    """Return the index of the part of so many bits that holds a field of a word."""
    parts = 64 // bits
    at = shift // bits
    return word * parts + (at if sys.byteorder == "little" else parts - 1 - at)


def _pieces(maps: LBMaps, family: Family) -> Iterator[memoryview]:
    """Yield the table of a family, in pieces; only one is mapped at a time, as mapped pages count as memory of the agent."""
    name, size = family_map(family, "flow"), FLOW[family].size
    entries = maps.specs[name].value_size // size
    for first in range(0, entries, PIECE_ENTRIES):
        with maps.window(name, first * size, min(PIECE_ENTRIES, entries - first) * size) as view:
            yield view


# --- decoding ---


def _decode(family: Family, view: memoryview) -> list[FlowEntry]:
    """Return the flows in a part of the table. An entry that changes meanwhile is read again."""
    found, torn = _decode_once(family, view)
    size = FLOW[family].size
    for at in torn:
        for _ in range(MAX_READS):
            again, still_torn = _decode_once(family, view[at : at + size])
            if not still_torn:
                found += again
                break
    return found


def _decode_once(family: Family, view: memoryview) -> tuple[list[FlowEntry], list[int]]:
    """Return the flows, and the offsets of entries that changed while they were read."""
    data, size = bytes(view), FLOW[family].size
    if is_zero(data):
        return [], []
    return (_decode4 if family is Family.IPV4 else _decode6)(data, view, size)


def _decode4(data: bytes, _view: memoryview, size: int) -> tuple[list[FlowEntry], list[int]]:
    out, torn, generation = [], [], GENERATION
    entries = _ENTRY[Family.IPV4].iter_unpack(data)
    for at, (own, port, client, other, vip_port, vip, value, seen, _, service, hop) in enumerate(entries):
        if not port and client == _FREE:
            continue
        if (own ^ other | own ^ value) & generation:
            torn.append(at * size)
        else:
            out.append(_flow(Family.IPV4, own, port, client, vip_port, vip, value, seen, service, hop))
    return out, torn


def _decode6(data: bytes, view: memoryview, size: int) -> tuple[list[FlowEntry], list[int]]:
    """Do the same as `_decode4`; `data` was read before the owner words, which are read here once more."""
    out, torn, generation = [], [], GENERATION
    step = size // 8
    owners_then, owners_now = memoryview(data).cast("Q")[::step].tolist(), view.cast("Q")[::step].tolist()
    entries = _ENTRY[Family.IPV6].iter_unpack(data)
    for at, (own, _, vip_port, port, client, vip, value, seen, _, service, hop, _) in enumerate(entries):
        if not owners_then[at] >> OWNER_HELD_SHIFT:
            continue
        if (own ^ value) & generation or owners_now[at] != owners_then[at]:
            torn.append(at * size)
        else:
            out.append(_flow(Family.IPV6, own, port, client, vip_port, vip, value, seen, service, hop))
    return out, torn


def _spilled(family: Family, key: bytes, data: bytes) -> FlowEntry | None:
    """Return the flow of a spill row; None for a row for replies."""
    value, seen, _, service, hop = _VALUE_AND_SEEN.unpack(data)
    if family is Family.IPV4:
        own, port, client, mark, vip_port, vip = _KEY[family].unpack(key)
    else:
        own, _, vip_port, port, client, vip = _KEY[family].unpack(key)
        mark = own
    if mark & REPLY_MARK:
        return None
    return _flow(family, own, port, client, vip_port, vip, value, seen, service, hop, spilled=True)


def _flow(  # noqa: PLR0917 - keywords cost a fifth of the time that a flow takes
    family: Family,
    own: int,  # the lowest 16 bits of the owner word
    port: int,
    client: bytes,
    vip_port: int,
    vip: bytes,
    value: int,
    seen: int,
    service: int,
    hop: int,
    *,
    spilled: bool = False,
) -> FlowEntry:
    forward = value >> _FORWARD & 0xFFFF
    has_port = forward & FORWARD_PORT_BITS
    return FlowEntry(
        family,
        _L4[own >> _L4_SHIFT],
        client,
        _SWAP[port],
        vip,
        _SWAP[vip_port],
        service,
        value >> _BACKEND,
        value >> _BACKEND_GENERATION & 0xFF,
        _STATES[value >> _STATE & 3],
        value >> _FIN & 3,
        _SWAP[forward] if has_port else 0,
        ForwardMode.SNAT if has_port else forward >> FORWARD_MODE_SHIFT,
        seen,
        0 if hop & (HANDSHAKE_ANSWERED | HANDSHAKE_OLDER) else hop & (NEXTHOPS - 1),
        spilled,
    )
