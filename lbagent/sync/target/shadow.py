"""Shadow: what the maps hold now, kept in memory after they were read once, so that a plan needs no read.

A frontend that is exactly as planned costs one reference to its SVC; backend rows and path records are images indexed by
id. Only `apply` and `restore` change a Shadow.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from lbagent.maps import backend_codec, frontend_codec, prefilter
from lbagent.maps.frontend_codec import FrontendEntries
from lbagent.maps.layout import BACKEND, PATH, PathFlag
from lbagent.maps.specs import Sizes, map_specs
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.service import SVC, Algorithm

_FIELD = 24  # bits of one counter in a backend's refs
_MASK = (1 << _FIELD) - 1
_STATES = 4
SELECTED = 1 << _FIELD * _STATES
PIN = 1 << _FIELD * (_STATES + 1)
_LOCAL = int(PathFlag.LIVE | PathFlag.LOCAL)


class Partial(Struct):
    """A frontend whose entries are not those of one SVC: just read from the maps, or a plan that broke off.

    `pins` are backends that must not be deleted, because its slots may name them. `slots` are (slot, value) side by side
    that are not in `rest`: a start holds 100,000 of them for a moment.
    """

    rest: FrontendEntries
    pins: frozenset[int] = frozenset()
    slots: bytes = b""

    @property
    def rows(self) -> FrontendEntries:
        """The entries; do not change them."""
        if not self.slots:
            return self.rest
        rest, unpacked = self.rest, dict(_SLOT_AND_VALUE.iter_unpack(self.slots))
        return FrontendEntries(
            rest.id, unpacked, rest.reverse, rest.affinity, rest.ranges, rest.verdicts, rest.members, rest.table
        )


_SLOT_AND_VALUE = struct.Struct("=H12s")
Entry = SVC | Partial


def rows_of(entry: Entry | None) -> FrontendEntries | None:
    """Return what the maps hold for an entry."""
    if entry is None:
        return None
    return entry.rows if isinstance(entry, Partial) else frontend_codec.encode(entry)


def entries_of(family: Family, entry: Entry | None) -> dict[str, int]:
    """Return how many entries of which map an entry takes."""
    if isinstance(entry, SVC) and not (
        entry.session_affinity or entry.source_ranges or entry.algorithm is Algorithm.MAGLEV
    ):
        return {
            family.map("service"): frontend_codec.entry_count(entry),
            family.map("reverse_nat"): int(bool(entry.id)),
        }
    rows = rows_of(entry)
    if rows is None:
        return {}
    return {
        family.map("service"): len(rows.slots),
        family.map("reverse_nat"): int(bool(rows.reverse)),
        "lb_affinity_match": len(rows.affinity),
        family.map("source_range"): len(rows.ranges),
        family.map("maglev"): int(rows.has_table),
    }


class Image:
    """Fixed-size records by index. Anonymous memory: pages of ids nobody has cost nothing."""

    def __init__(self, record: int, count: int) -> None:
        """Start with zeros."""
        self.record, self.count = record, count
        self._zero = bytes(record)
        self.memory = mmap.mmap(-1, max(1, record * count), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def get(self, index: int) -> bytes:
        """Return a record."""
        return self.memory[index * self.record : (index + 1) * self.record]

    def set(self, index: int, value: bytes) -> None:
        """Replace a record."""
        self.memory[index * self.record : (index + 1) * self.record] = value

    def set_start(self, index: int, value: bytes) -> None:
        """Replace the first bytes of a record."""
        at = index * self.record
        self.memory[at : at + len(value)] = value

    def clear(self, index: int) -> None:
        """Zero a record."""
        self.set(index, self._zero)

    def is_clear(self, index: int) -> bool:
        """Whether a record is all zero."""
        return self.get(index) == self._zero

    def used(self) -> Iterator[int]:
        """Yield the index of each record that is not all zero."""
        step = 256
        for start in range(0, self.count, step):
            piece = self.memory[start * self.record : (start + step) * self.record]
            if piece.strip(b"\0"):
                records = range(0, len(piece), self.record)
                yield from (start + at // self.record for at in records if any(piece[at : at + self.record]))


class Shadow:
    """The maps' contents. `refs` says who uses a backend id: counters by state, SELECTED and PIN in one int."""

    def __init__(self, sizes: Sizes) -> None:
        """Start with empty maps of these sizes."""
        self.sizes = sizes
        self.specs = map_specs(sizes)
        self.services: tuple[SVC, ...] = ()  # the State planned last: what is the same object there needs no look
        self.frontends: dict[L3n4Addr, Entry] = {}
        self.dirty: set[L3n4Addr] = set()  # Partial ones that must be planned again
        self.refs: dict[int, int] = {}
        self.rows = {each: Image(BACKEND[each].size, sizes.backends) for each in Family}
        self.paths = {each: Image(PATH[each].size, sizes.backends) for each in Family}
        self.filter = mmap.mmap(-1, self.specs["lb_filter"].value_size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.filter_refs: dict[int, int] = {}  # by bit: frontends at the address, local backends with it
        self.snat_bits: frozenset[int] = frozenset()
        self.stale_bits: set[int] = set()  # nobody needs them any more
        self.orphans: list[tuple[str, bytes]] = []  # entries of no frontend, found by restore
        self.full = False  # read from the maps and not compared yet
        self.prune = True  # whether backends that no service names are taken away when all is compared
        self.used: dict[str, int] = {}

    def bit(self, number: int) -> int:
        """Return a bit of the prefilter."""
        return self.filter[number >> 3] >> (number & 7) & 1

    def set_bit(self, number: int, on: bool) -> None:
        """Change a bit of the prefilter."""
        mask = 1 << (number & 7)
        self.filter[number >> 3] = self.filter[number >> 3] | mask if on else self.filter[number >> 3] & ~mask

    def set_bits(self) -> Iterator[int]:
        """Yield every bit of the prefilter that is set."""
        with memoryview(self.filter) as view, view.cast("Q") as words:
            for at, word in enumerate(words):
                while word:
                    low = word & -word
                    yield at * 64 + low.bit_length() - 1
                    word ^= low

    def count_filter(self, number: int, by: int) -> None:
        """Add to the users of a filter bit; at none it becomes stale."""
        users = self.filter_refs.get(number, 0) + by
        if users > 0:
            self.filter_refs[number] = users
            self.stale_bits.discard(number)
        else:
            self.filter_refs.pop(number, None)
            self.stale_bits.add(number)

    def set_row(self, family: Family, ident: int, value: bytes | None) -> None:
        """Note a backend row; None is its deletion."""
        image = self.rows[family]
        had = not image.is_clear(ident)
        image.set(ident, value) if value else image.clear(ident)
        self.count(family.map("backend"), bool(value) - had)

    def set_path(self, family: Family, ident: int, record: bytes) -> None:
        """Note a path record, and the filter bit of a local backend."""
        image, at = self.paths[family], backend_codec.FLAGS_AT[len(record)]
        size = family.address_bytes
        old = image.get(ident)
        image.set(ident, record)
        if old[at] & _LOCAL == _LOCAL:
            self.count_filter(prefilter.source_bit(old[:size]), -1)
        if record[at] & _LOCAL == _LOCAL:
            self.count_filter(prefilter.source_bit(record[:size]), 1)

    def count(self, map_name: str, by: int) -> None:
        """Add to the entries of a map."""
        if by:
            self.used[map_name] = self.used.get(map_name, 0) + by

    def states(self) -> Counter[BackendState]:
        """Return how many backends are in which state, without a look at the services."""
        found: Counter[BackendState] = Counter()
        for refs, number in Counter(self.refs.values()).items():
            if (state := state_of(refs)) is not None:
                found[state] += number
        return found

    def pressure(self) -> dict[str, tuple[int, int]]:
        """Return (used, max) of every map the plan fills, without walking one."""
        names = ("lb4_service", "lb6_service", "lb4_backend", "lb6_backend", "lb_affinity_match", "lb4_source_range",
                 "lb6_source_range", "lb4_maglev", "lb6_maglev", "lb4_reverse_nat", "lb6_reverse_nat")  # fmt: skip
        return {name: (self.used.get(name, 0), self.specs[name].max_entries) for name in names}


_TOKENS = [
    [(1 << _FIELD * state) + (SELECTED if chosen else 0) for chosen in (False, True)] for state in range(_STATES)
]


def token(state: BackendState, chosen: bool) -> int:
    """Return what one service adds to the refs of a backend. One object a kind: 100,000 refs are mostly equal."""
    return _TOKENS[state][chosen]


def state_of(refs: int) -> BackendState | None:
    """Return the most alive state that any service gives a backend, None when only pins are left."""
    for state in range(_STATES):
        if refs >> _FIELD * state & _MASK:
            return BackendState(state)
    return None


def is_selectable(refs: int) -> bool:
    """Return whether a new flow may take the backend: active, or in the COUNT group of a service."""
    return bool(refs & _MASK or refs >> _FIELD * _STATES & _MASK)
