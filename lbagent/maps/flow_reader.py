"""Read flows from the flow tables and the spill maps while the kernel's programs write them. Nothing is written.

An entry is consistent if its words carry one generation; IPv6 addresses carry none, so the owner word is read again after them,
as the programs do (ct_entry.h). An entry that changes while it is read is read again, a bounded number of times, and then left
out, as it is being replaced. The table is read in pieces, so that a caller on an event loop can yield between pieces.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import compress, repeat
from operator import and_, rshift, xor
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from lbagent.maps.flow_hash import FlowEnd, flow_buckets, snat_position
from lbagent.maps.flow_layout import (
    FLOW,
    FORWARD_MODE_SHIFT,
    FORWARD_PORT_BITS,
    HANDSHAKE_ANSWERED,
    HANDSHAKE_OLDER,
    OWNER_HELD_SHIFT,
    REPLY_MARK,
    SNAT,
    FlowState,
    ForwardMode,
)
from lbagent.maps.layout import (
    FLOW_WAYS,
    NEXTHOPS,
    PATH,
    PATH_EXTRA_SNAT_SHIFT,
    PATH_KEEPS_PORT_SHIFT,
    PATH_L4_SHIFT,
    PathL4,
    is_zero,
)
from lbagent.maps.map_names import family_map
from lbagent.model.family import Family

if TYPE_CHECKING:
    from lbagent.maps.specs import MapSpec

PIECE_ENTRIES = 1 << 14  # entries read at once: 1 ms or less where none is held, 20 ms where all are
CACHED_ENTRIES = 1 << 11  # whose objects the processor's cache holds, for a reader that makes a text of each
MAX_READS = 3  # of an entry that changes while it is read

GENERATION = FLOW[Family.IPV4].fields["generation"].mask


class FlowMaps(Protocol):
    """The part of LBMaps that reads flows; also PinnedMaps."""

    @property
    def specs(self) -> Mapping[str, MapSpec]:
        """The specifications, by name."""

    def get(self, map_name: str, key: bytes) -> bytes | None:
        """Return the value of a key."""

    def items(self, map_name: str) -> list[tuple[bytes, bytes]]:
        """Return all entries."""

    def window(self, map_name: str, offset: int, length: int) -> AbstractContextManager[memoryview]:
        """Map `length` bytes of a mmapable array."""


# A flow as its words have it: position in the table (SPILLED: none), lowest 16 bits of the owner word, client port as stored in the
# word, client, VIP port as stored, VIP, value word, last seen, service id, hop word. A tuple, as there may be a million.
RawFlow = tuple[int, int, int, bytes, int, bytes, int, int, int, int]
SPILLED = -1


@cache
def host_ports() -> Sequence[int]:
    """Return, by port as stored in a word, the port in host order."""
    return tuple((port & 0xFF) << 8 | port >> 8 for port in range(1 << 16))


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


@cache
def _live_values() -> Sequence[bool]:
    """Return, by the 16 bits of the value word with the state, whether the flow is not closing."""
    return tuple(number >> _STATE % 16 & 3 != FlowState.CLOSING for number in range(1 << 16))


@cache
def _one_generation() -> Sequence[bool]:
    """Return, by the lowest 16 bits of the owner word XOR those of the value word, whether both are of one generation."""
    return tuple(not number & GENERATION for number in range(1 << 16))


Pair = tuple[int, int]  # service id and backend id of a flow


def flows(maps: FlowMaps, family: Family) -> Iterator[Sequence[FlowEntry]]:
    """Yield the flows of a family: piece by piece of the table, the spilled ones last. Raises KernelError."""
    for piece in raw_flows(maps, family):
        yield [_flow(family, raw) for raw in piece]


def raw_flows(maps: FlowMaps, family: Family, piece_entries: int = PIECE_ENTRIES) -> Iterator[Sequence[RawFlow]]:
    """Yield the same flows as their words have them. Raises KernelError."""
    yield from table_flows(maps, family, piece_entries)
    yield raw_spilled_flows(maps, family)


def table_size(maps: FlowMaps, family: Family) -> int:
    """Return how many entries the table of a family has."""
    return maps.specs[family_map(family, "flow")].value_size // FLOW[family].size


def table_flows(
    maps: FlowMaps, family: Family, piece_entries: int = PIECE_ENTRIES, part: int = 0, parts: int = 1
) -> Iterator[Sequence[RawFlow]]:
    """Yield the flows of the table; of `parts` readers, number `part` reads every so-manieth piece. Raises KernelError."""
    first = part * piece_entries
    for view in _pieces(maps, family, piece_entries, part, parts):
        yield _decode(family, view, first)
        first += parts * piece_entries


def raw_spilled_flows(maps: FlowMaps, family: Family) -> list[RawFlow]:
    """Return the flows of the spill map as their words have them. Raises KernelError."""
    return [raw for raw, _, _ in _spilled_raw(maps, family)]


def find_flow(maps: FlowMaps, client: FlowEnd, frontend: FlowEnd, l4: PathL4, seeds: tuple[int, int]) -> RawFlow | None:
    """Return the flow between these ends, None if there is none. `seeds`: of the hash, by which it is found. Raises KernelError."""
    family = Family.of(client.address)
    name, size = family_map(family, "flow"), FLOW[family].size * FLOW_WAYS
    buckets = flow_buckets(client, l4, seeds, maps.specs[name].value_size // FLOW[family].size)
    key = key_between(client, frontend, l4)
    for bucket in dict.fromkeys(buckets):
        with maps.window(name, bucket * size, size) as view:
            for raw in _decode(family, view, bucket * FLOW_WAYS):
                if flow_key(family, raw) == key:
                    return raw
    value = maps.get(family_map(family, "spill"), key)
    return _spilled(family, key, value) if value else None


def snat_client(
    maps: FlowMaps, family: Family, backend: int, port: int, seeds: tuple[int, int], frontend_port: int = 0
) -> FlowEnd | None:
    """Return who holds a SNAT port (host order) towards the backend with this id; None if it is free. Raises KernelError.

    `frontend_port`: that of the flow, which decides where the backend keeps it.
    """
    path, slot, paths, slots = PATH[family], SNAT[family], family_map(family, "path"), family_map(family, "snat")
    if (backend + 1) * path.size > maps.specs[paths].value_size:
        return None
    with maps.window(paths, backend * path.size, path.size) as view:
        address, _, path_port, _, flags, hop, *_ = path.codec.unpack(view)
    port_of_backend = int.from_bytes(path_port, "big") or frontend_port
    end, l4 = FlowEnd(address, port_of_backend), PathL4(flags >> PATH_L4_SHIFT & max(PathL4))
    count = maps.specs[slots].value_size // slot.size
    source = hop % (1 << PATH_KEEPS_PORT_SHIFT) >> PATH_EXTRA_SNAT_SHIFT
    at = snat_position(end, l4, source, port, seeds, count) * slot.size
    with maps.window(slots, at, slot.size) as view:
        words = memoryview(bytes(view)).cast("Q")
        is_same = view.cast("Q")[0] == words[0]  # IPv6: the words of the address have no generation
    found = {name: field.of(words[field.word]) for name, field in slot.fields.items()}
    is_whole = is_same and not (words[0] ^ words[-1]) & slot.fields["meta_generation"].mask
    if not is_whole or not words[0] >> OWNER_HELD_SHIFT or found["backend"] != backend:
        return None
    parts = [found[name].to_bytes(slot.fields[name].width // 8, sys.byteorder) for name in _CLIENT if name in found]
    return FlowEnd(b"".join(parts), host_ports()[found["client_port"]])


_CLIENT = ("client", "client_end")  # parts of a client's address


def has_backend(raw: RawFlow) -> bool:
    """Whether the flow has a backend. One without gets RST for its next packet (TCP), or selects one."""
    return bool(raw[6] >> _BACKEND)


def established_tcp(raw: RawFlow) -> int:
    """Return the backend id of an established flow of TCP; 0 for any other flow."""
    is_tcp = raw[1] >> _L4_SHIFT == PathL4.TCP
    return raw[6] >> _BACKEND if is_tcp and raw[6] >> _STATE & 3 == FlowState.ESTABLISHED else 0


def flow_key(family: Family, raw: RawFlow) -> bytes:
    """Return the key words of a flow with generation 0: the key of its row if it spills."""
    _, own, port, client, vip_port, vip, *_ = raw
    own &= ~GENERATION
    if family is Family.IPV4:
        return _KEY[family].pack(own, port, client, 0, vip_port, vip)
    return _KEY[family].pack(own, int.from_bytes(vip[14:], sys.byteorder), vip_port, port, client, vip)


def key_between(client: FlowEnd, frontend: FlowEnd, l4: PathL4) -> bytes:
    """Return the key words, with generation 0, of the flow between these ends."""
    ends = client.stored_port, client.address, frontend.stored_port, frontend.address
    return flow_key(Family.of(client.address), (SPILLED, l4 << _L4_SHIFT, *ends, 0, 0, 0, 0))


def spilled_flows(maps: FlowMaps, family: Family) -> list[FlowEntry]:
    """Return the flows of the spill map; rows for replies are no flows. Raises KernelError."""
    return [flow for flow, _, _ in spilled_rows(maps, family)]


def spilled_rows(maps: FlowMaps, family: Family) -> list[tuple[FlowEntry, bytes, bytes]]:
    """Return the flows of the spill map, each with the key and the value of its row. Raises KernelError."""
    return [(_flow(family, raw), key, value) for raw, key, value in _spilled_raw(maps, family)]


def _spilled_raw(maps: FlowMaps, family: Family) -> list[tuple[RawFlow, bytes, bytes]]:
    rows = maps.items(family_map(family, "spill"))
    return [(raw, key, value) for key, value in rows if (raw := _spilled(family, key, value))]


def pairs_of_backends(maps: FlowMaps, family: Family, idents: Container[int]) -> Iterator[set[Pair]]:
    """Yield the pairs of all flows to some backend ids, as `udp_pairs` does. Raises KernelError."""
    record = FLOW[family]
    backend, service = record.fields["backend"], record.fields["service"]
    for view in _pieces(maps, family):
        piece = bytes(view)
        if is_zero(piece):
            yield set()
            continue
        words = memoryview(piece).cast("Q")
        columns = (words[at :: record.words].tolist() for at in (0, backend.word, service.word))
        yield {
            (service.of(seen), backend.of(value))
            for owner, value, seen in zip(*columns, strict=True)
            if owner >> OWNER_HELD_SHIFT and backend.of(value) in idents
        }
    yield {(flow.service, flow.backend) for flow in spilled_flows(maps, family) if flow.backend in idents}


def udp_pairs(maps: FlowMaps, family: Family) -> Iterator[set[Pair]]:
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


def count(maps: FlowMaps, family: Family) -> Counter[int]:
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
        live = map(_live_values().__getitem__, compress(states, held))
        found.update(map(rshift, compress(compress(backends, held), live), repeat(backend.shift - 32)))
    found.update(flow.backend for flow in spilled_flows(maps, family) if flow.is_live)
    del found[0]
    return found


def count_live(maps: FlowMaps, family: Family) -> int:
    """Return the sum of `count`, in a third of the time. Raises KernelError."""
    record = FLOW[family]
    size = record.size
    owner_bytes = [_byte_at(0, shift) for shift in range(OWNER_HELD_SHIFT, 64, 8)]
    backend = record.fields["backend"]
    value_bytes = [_byte_at(backend.word, shift) for shift in range(backend.shift + 4, 64, 8)]
    shared = _byte_at(backend.word, backend.shift - 4)  # of which the backend has the upper half
    state = _byte_at(record.fields["state"].word, record.fields["state"].shift)
    live = 0
    for view in _pieces(maps, family):
        piece = bytes(view)
        if is_zero(piece):
            continue
        # Columns of bytes as one number each: no step of Python for an entry.
        low = piece[shared::size].translate(_UPPER_HALF)
        held, has_backend = (
            _any_of(piece, owner_bytes, size),
            _any_of(piece, value_bytes, size) | int.from_bytes(low, "little"),
        )
        count = len(low)
        columns = (held.to_bytes(count, "little"), has_backend.to_bytes(count, "little"))
        ones = [int.from_bytes(column.translate(_IS_SET), "little") for column in columns]
        ones.append(int.from_bytes(piece[state::size].translate(_NOT_CLOSING), "little"))
        live += (ones[0] & ones[1] & ones[2]).bit_count()
    return live + sum(flow.is_live for flow in spilled_flows(maps, family))


_IS_SET = bytes(map(bool, range(256)))
_UPPER_HALF = bytes(number & 0xF0 for number in range(256))
_NOT_CLOSING = bytes(
    number & 3 != FlowState.CLOSING for number in range(256)
)  # of the byte of the value word with the state


def _any_of(piece: bytes, places: Sequence[int], size: int) -> int:
    """Return the bytes at these places of each entry, one or the other, as one number."""
    found = 0
    for at in places:
        found |= int.from_bytes(piece[at::size], "little")
    return found


def _byte_at(word: int, shift: int) -> int:
    """Return which byte of a record has the bits of a word from `shift` on."""
    return 8 * word + (shift // 8 if sys.byteorder == "little" else 7 - shift // 8)


def totals(maps: FlowMaps, family: Family) -> Counter[tuple[int, int, PathL4]]:
    """Return how many live flows (FlowEntry.is_live) each service id has with each backend id, by protocol. Raises KernelError.

    An entry that changes while it is read is left out.
    """
    record = FLOW[family]
    l4, backend, state, service = (record.fields[name] for name in ("l4", "backend", "state", "service"))
    found: Counter[tuple[int, int, int]] = Counter()
    for view in _pieces(maps, family):
        piece = bytes(view)
        if is_zero(piece):
            continue
        # as in `count`, without a step of Python for each entry
        halves, quarters = memoryview(piece).cast("I"), memoryview(piece).cast("H")
        held = halves[_part(0, OWNER_HELD_SHIFT + 16, 32) :: 2 * record.words].tolist()
        owners, values, states, services = (
            list(compress(quarters[_part(word, shift, 16) :: 4 * record.words].tolist(), held))
            for word, shift in ((0, 0), (backend.word, 0), (state.word, state.shift), (service.word, service.shift))
        )
        backends = compress(halves[_part(backend.word, backend.shift, 32) :: 2 * record.words].tolist(), held)
        live = map(_live_values().__getitem__, states)
        whole = map(_one_generation().__getitem__, map(xor, owners, values))
        idents, protocols = map(rshift, backends, repeat(backend.shift - 32)), map(rshift, owners, repeat(l4.shift))
        found.update(compress(zip(services, idents, protocols, strict=True), map(and_, live, whole)))
    out = Counter({(ident, by, PathL4(word)): count for (ident, by, word), count in found.items() if by})
    out.update((flow.service, flow.backend, flow.l4) for flow in spilled_flows(maps, family) if flow.is_live)
    return out


def _part(word: int, shift: int, bits: int) -> int:
    """Return the index of the part of so many bits that holds a field of a word."""
    parts = 64 // bits
    at = shift // bits
    return word * parts + (at if sys.byteorder == "little" else parts - 1 - at)


def _pieces(
    maps: FlowMaps, family: Family, piece_entries: int = PIECE_ENTRIES, part: int = 0, parts: int = 1
) -> Iterator[memoryview]:
    """Yield the table of a family, in pieces; only one is mapped at a time, as mapped pages count as memory of the agent."""
    name, size = family_map(family, "flow"), FLOW[family].size
    entries = maps.specs[name].value_size // size
    for first in range(part * piece_entries, entries, parts * piece_entries):
        with maps.window(name, first * size, min(piece_entries, entries - first) * size) as view:
            yield view


# --- decoding ---


def _decode(family: Family, view: memoryview, first: int) -> list[RawFlow]:
    """Return the flows in a part of the table that begins at a position. An entry that changes meanwhile is read again."""
    found, torn = _decode_once(family, view, first)
    size = FLOW[family].size
    for at in torn:
        for _ in range(MAX_READS):
            again, still_torn = _decode_once(family, view[at : at + size], first + at // size)
            if not still_torn:
                found += again
                break
    return found


def _decode_once(family: Family, view: memoryview, first: int = 0) -> tuple[list[RawFlow], list[int]]:
    """Return the flows, and the offsets of entries that changed while they were read."""
    data, size = bytes(view), FLOW[family].size
    if is_zero(data):
        return [], []
    if family is Family.IPV4:
        return _decode4(data, size, first)
    return _decode6(data, view, size, first)


def _decode4(data: bytes, size: int, first: int) -> tuple[list[RawFlow], list[int]]:
    out, torn, generation = [], [], GENERATION
    entries = _ENTRY[Family.IPV4].iter_unpack(data)
    for at, (own, port, client, other, vip_port, vip, value, seen, _, service, hop) in enumerate(entries, first):
        if not port and client == _FREE:
            continue
        if (own ^ other | own ^ value) & generation:
            torn.append((at - first) * size)
        else:
            out.append((at, own, port, client, vip_port, vip, value, seen, service, hop))
    return out, torn


def _decode6(data: bytes, view: memoryview, size: int, first: int) -> tuple[list[RawFlow], list[int]]:
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
            out.append((first + at, own, port, client, vip_port, vip, value, seen, service, hop))
    return out, torn


def _spilled(family: Family, key: bytes, data: bytes) -> RawFlow | None:
    """Return the flow of a spill row; None for a row for replies."""
    value, seen, _, service, hop = _VALUE_AND_SEEN.unpack(data)
    if family is Family.IPV4:
        own, port, client, mark, vip_port, vip = _KEY[family].unpack(key)
    else:
        own, _, vip_port, port, client, vip = _KEY[family].unpack(key)
        mark = own
    if mark & REPLY_MARK:
        return None
    return SPILLED, own, port, client, vip_port, vip, value, seen, service, hop


def _flow(family: Family, raw: RawFlow) -> FlowEntry:
    at, own, port, client, vip_port, vip, value, seen, service, hop = raw
    swap = host_ports()
    forward = value >> _FORWARD & 0xFFFF
    has_port = forward & FORWARD_PORT_BITS
    return FlowEntry(
        family,
        _L4[own >> _L4_SHIFT],
        client,
        swap[port],
        vip,
        swap[vip_port],
        service,
        value >> _BACKEND,
        value >> _BACKEND_GENERATION & 0xFF,
        _STATES[value >> _STATE & 3],
        value >> _FIN & 3,
        swap[forward] if has_port else 0,
        ForwardMode.SNAT if has_port else forward >> FORWARD_MODE_SHIFT,
        seen,
        0 if hop & (HANDSHAKE_ANSWERED | HANDSHAKE_OLDER) else hop & (NEXTHOPS - 1),
        at == SPILLED,
    )
