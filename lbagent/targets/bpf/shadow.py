"""Shadow: what the maps hold now, kept in memory after they were read once, so that a plan needs no read.

A frontend that is exactly as planned costs one reference to its SVC; backend rows and path records are arrays indexed by
id. One BpfTarget owns a Shadow: `restore` fills it, `apply` keeps it up to date, both by its methods.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct

from lbagent.maps import backend_codec, frontend_codec, prefilter
from lbagent.maps.frontend_codec import FrontendEntries
from lbagent.maps.layout import BACKEND, PATH, is_zero
from lbagent.maps.map_names import family_map
from lbagent.maps.specs import Sizes, map_specs
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.service import SVC, Algorithm
from lbagent.targets.bpf.record_array import BackendRefs, BitUsers, RecordArray, zeroed_memory


class PartialFrontend(Struct):
    """A frontend whose entries are not those of one SVC: just read from the maps, or a plan that broke off.

    `pins` are backends that must not be deleted, because its slots may name them. `slots` are (slot, value) side by side
    that are not in `rest`: a start holds 100,000 of them for a moment. `strays` are (map, key) of reverse NAT rows, affinity
    matches and tables under another id than `rest` has: a change of the id broke off.
    """

    rest: FrontendEntries
    pins: frozenset[int] = frozenset()
    slots: bytes = b""
    strays: frozenset[tuple[str, bytes]] = frozenset()

    @property
    def entries(self) -> FrontendEntries:
        """The entries; do not change them."""
        if not self.slots:
            return self.rest
        rest, unpacked = self.rest, dict(_SLOT_AND_VALUE.iter_unpack(self.slots))
        return FrontendEntries(
            rest.id,
            unpacked,
            rest.reverse,
            rest.affinity,
            rest.ranges,
            rest.verdicts,
            rest.members,
            rest.table,
            rest.ports,
        )


_SLOT_AND_VALUE = struct.Struct("=H12s")
ShadowFrontend = SVC | PartialFrontend


def map_entries(entry: ShadowFrontend) -> FrontendEntries:
    """Return what the maps hold for an entry; do not change it."""
    return entry.entries if isinstance(entry, PartialFrontend) else frontend_codec.encode(entry)


Limited = tuple[int, int, int]  # slots, affinity matches, source ranges: what frontends can be short of
LIMITED_MAPS = {
    family: (family_map(family, "service"), "lb_affinity_match", family_map(family, "source_range"))
    for family in Family
}


def limited_counts(entry: ShadowFrontend) -> Limited:
    """Return how many entries of each of the `LIMITED_MAPS` an entry takes, without those that it has under another id."""
    if isinstance(entry, PartialFrontend):
        slots = len(entry.slots) // _SLOT_AND_VALUE.size if entry.slots else len(entry.rest.slots)
        return slots, len(entry.rest.affinity), len(entry.rest.ranges)
    matches = len(entry.selectable) if entry.session_affinity and entry.id else 0
    ranges = 0
    if entry.source_ranges and entry.id:
        size = len(entry.frontend.address)
        ranges = len({cidr for cidr in entry.source_ranges if len(cidr.network) == size})
    return frontend_codec.entry_count(entry), matches, ranges


def entry_counts(family: Family, entry: ShadowFrontend | None) -> dict[str, int]:
    """Return how many entries of which map an entry takes."""
    if entry is None:
        return {}
    if isinstance(entry, SVC) and not (
        entry.session_affinity
        or entry.source_ranges
        or entry.frontend.last_port
        or entry.algorithm is not Algorithm.RANDOM
    ):
        return {
            family_map(family, "service"): frontend_codec.entry_count(entry),
            family_map(family, "reverse_nat"): int(bool(entry.id)),
        }
    entries = map_entries(entry)
    counts = Counter(
        {
            family_map(family, "service"): len(entries.slots),
            family_map(family, "reverse_nat"): int(bool(entries.reverse)),
            "lb_affinity_match": len(entries.affinity),
            family_map(family, "source_range"): len(entries.ranges),
            family_map(family, "maglev"): int(entries.has_table),
            family_map(family, "port_range"): len(entries.ports),
        }
    )
    counts.update(name for name, _ in strays_of(entry))
    return counts


def strays_of(entry: ShadowFrontend | None) -> frozenset[tuple[str, bytes]]:
    """Return the (map, key) of what an entry has under another id than the rest."""
    return entry.strays if isinstance(entry, PartialFrontend) else frozenset()


def may_name(entry: ShadowFrontend, ident: int) -> bool:
    """Return whether entries of a frontend may have this service id; with strays they may have any."""
    return map_entries(entry).id == ident or bool(strays_of(entry))


_FIELD = 24  # bits of one counter in a backend's refs
_MASK = (1 << _FIELD) - 1
_STATES = 4
SELECTED = 1 << _FIELD * _STATES
PIN = 1 << _FIELD * (_STATES + 1)


class Shadow:
    """The contents of the maps, as last read or written.

    `refs` holds the reference counts of each backend id: counters by state, SELECTED and PIN in one int. Other modules read
    the attributes and change them by methods only.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.specs = map_specs(sizes)
        self.services: tuple[SVC, ...] = ()  # the State planned last: what is the same object there needs no look
        self.frontends: dict[L3n4Addr, ShadowFrontend] = {}
        self.dirty: set[L3n4Addr] = set()  # must be planned again although their SVC is the same object
        self.deferred: AbstractSet[L3n4Addr] = frozenset()  # were dirty, and are left out of the next plan
        self.refs = BackendRefs(sizes.backends)
        self.backend_rows = {each: RecordArray(BACKEND[each].size, sizes.backends) for each in Family}
        self.paths = {each: RecordArray(PATH[each].size, sizes.backends) for each in Family}
        self.extra_snat_paths = 0  # live path records of extra SNAT addresses
        self.filter = zeroed_memory(self.specs["lb_filter"].value_size)
        self.filter_refs = BitUsers(8 * len(self.filter))  # by bit: frontends at the address, local backends with it
        self.found_bits = False  # the prefilter was not empty when it was read
        self.snat_bits: frozenset[int] = frozenset()
        self.stale_bits: dict[int, float] = {}  # without users: to be cleared at that time, in seconds; 0: not set yet
        self.orphans: list[tuple[str, bytes]] = []  # entries of no frontend, found by restore
        self.needs_full_sync = False  # read from the maps and not compared yet
        self.prune = True  # whether a full sync takes away backends that no service names
        self.used: dict[str, int] = {}

    # --- what the maps held when they were read ---

    def begin_restore(self) -> None:
        """Say that what follows was found in the maps: the next plan compares all of it."""
        self.needs_full_sync = True

    def restore_rows(self, family: Family, rows: Mapping[int, bytes]) -> None:
        """Note backend rows that were found, by id; `count` them by map."""
        self.backend_rows[family].set_each(rows)

    def restore_paths(self, family: Family, first: int, records: bytes) -> None:
        """Note path records that were found, of ids that follow each other, and the filter bits of local backends."""
        self.paths[family].set(first, records)
        self._count_paths(records, self.paths[family].record, 1)

    def restore_filter(self, words: bytes) -> None:
        """Note the whole prefilter."""
        self.filter[:] = words
        self.found_bits = not is_zero(words)

    def restore_frontend(self, frontend: L3n4Addr, entries: FrontendEntries, slots: bytes) -> None:
        """Note a frontend; `slots` are (slot, value) side by side."""
        self.frontends[frontend] = PartialFrontend(entries, slots=slots)
        self.count_filter(prefilter.vip_bit(frontend.address), 1)

    def restore_orphan(self, map_name: str, key: bytes) -> None:
        """Note an entry that belongs to no frontend: the next plan takes it away."""
        self.orphans.append((map_name, key))

    def keep_unreferenced(self) -> None:
        """Leave backends that no service names in the maps, from now on."""
        self.prune = False

    # --- what must be planned again ---

    def invalidate(self, frontends: Iterable[L3n4Addr]) -> None:
        """Have these frontends planned again."""
        self.dirty.update(frontends)

    def defer(self, frontends: AbstractSet[L3n4Addr]) -> set[L3n4Addr]:
        """Leave these out of the next plan; return those that were dirty, to be invalidated after it."""
        self.deferred = deferred = self.dirty & frontends
        self.dirty -= deferred
        return deferred

    def leftovers(self) -> AbstractSet[L3n4Addr]:
        """Return the dirty frontends that have entries: what could not be taken away is among them."""
        return self.dirty & self.frontends.keys()

    def forget(self, frontends: Iterable[L3n4Addr]) -> None:
        """Take note that frontends without entries are no longer asked for."""
        self.dirty.difference_update(frontends)

    # --- what was written ---

    def set_frontend(self, frontend: L3n4Addr, new: ShadowFrontend | None) -> None:
        """Replace what is known of a frontend; None: none of its entries is left."""
        family, old = frontend.family, self.frontends.get(frontend)
        for name, by in entry_counts(family, new).items():
            self.count(name, by)
        for name, by in entry_counts(family, old).items():
            self.count(name, -by)
        if old is None and new is not None:
            self.count_filter(prefilter.vip_bit(frontend.address), 1)
        if new is not None:
            if isinstance(
                old, PartialFrontend
            ):  # its key goes too: one of a restart holds memory of what was read with it
                del self.frontends[frontend]
            self.frontends[frontend] = new
        elif old is not None:
            self.count_filter(prefilter.vip_bit(frontend.address), -1)
            del self.frontends[frontend]

    def set_references(self, refs: Mapping[int, int]) -> None:
        """Replace the reference counts of these backend ids; 0 forgets one."""
        self.refs.replace(refs)

    def pin(self, ident: int, counted: int) -> None:
        """Turn what a frontend counted for a backend into a pin: its slots may name the backend, in no known state."""
        self.refs[ident] = self.refs.get(ident) - counted + PIN

    def set_rows(self, family: Family, first: int, values: bytes) -> None:
        """Note backend rows, side by side, of ids that follow each other."""
        rows = self.backend_rows[family]
        count = len(values) // rows.record
        had = count - sum(map(rows.is_clear, range(first, first + count))) if first < rows.end else 0
        rows.set(first, values)
        self.count(family_map(family, "backend"), count - had)

    def delete_row(self, family: Family, ident: int) -> None:
        """Note that a backend row was deleted."""
        rows = self.backend_rows[family]
        self.count(family_map(family, "backend"), int(rows.is_clear(ident)) - 1)
        rows.clear(ident)

    def set_paths(self, family: Family, first: int, records: bytes) -> None:
        """Note path records, side by side, of ids that follow each other, and the filter bits of local backends."""
        paths = self.paths[family]
        old = paths.run(first, len(records) // paths.record)
        paths.set(first, records)
        self._count_paths(old, paths.record, -1)
        self._count_paths(records, paths.record, 1)

    def _count_paths(self, records: bytes, size: int, step: int) -> None:
        """Count path records in (1) or out (-1): among those of extra SNAT addresses, and at their filter bits."""
        self.extra_snat_paths += step * backend_codec.extra_snat_count(records, size)
        bits = backend_codec.filter_bits_of_each(records, size)
        if step == 1 and self.stale_bits.keys().isdisjoint(bits):
            self.filter_refs.add_each(bits)
        else:
            for bit in bits:
                self.count_filter(bit, step)

    def set_path_bodies(self, family: Family, first: int, records: bytes) -> None:
        """Note path records of which all but the meta word was stored."""
        paths = self.paths[family]
        paths.set_starts(first, records, backend_codec.META_AT[paths.record])

    def finish_plan(self, services: tuple[SVC, ...], unwritten: set[L3n4Addr], *, complete: bool) -> None:
        """Take note that a State was planned and applied, except `unwritten`.

        Not `complete`: what failed belongs to no frontend, and only a full sync finds it again.
        """
        self.services = services
        self.dirty = unwritten
        self.needs_full_sync = not complete
        if complete:
            self.orphans.clear()

    def count(self, map_name: str, by: int) -> None:
        """Add to the entries of a map."""
        self.used[map_name] = self.used.get(map_name, 0) + by

    # --- the prefilter ---

    def bit(self, number: int) -> int:
        """Return a bit of the prefilter."""
        return self.filter[number >> 3] >> (number & 7) & 1

    def unset(self, numbers: Iterable[int]) -> list[int]:
        """Return those of the bits that are not set, sorted."""
        words = self.filter
        return sorted([number for number in set(numbers) if not words[number >> 3] >> (number & 7) & 1])

    def set_bit(self, number: int, on: bool) -> None:
        """Change a bit of the prefilter."""
        self.change_bits((number,), on=on)

    def change_bits(self, numbers: Iterable[int], *, on: bool) -> None:
        """Change bits of the prefilter."""
        words = self.filter
        for number in numbers:
            mask = 1 << (number & 7)
            words[number >> 3] = words[number >> 3] | mask if on else words[number >> 3] & ~mask

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
        if self.filter_refs.add(number, by):
            self.stale_bits.pop(number, None)
        else:
            self.stale_bits[number] = 0.0

    def set_snat_bits(self, bits: frozenset[int]) -> None:
        """Replace the bits of the addresses this node translates to."""
        old, self.snat_bits = self.snat_bits, bits
        self.mark_stale(old - bits)

    def mark_stale(self, candidates: Iterable[int]) -> None:
        """Mark those of the bits that have no user as stale."""
        snat, stale = self.snat_bits, self.stale_bits
        for bit in self.filter_refs.unused(candidates):
            if bit not in snat:
                stale.setdefault(bit, 0.0)

    def clearable_bits(self, now: float, linger_s: float) -> list[int]:
        """Return the bits that are stale for `linger_s`, counted from the first request, and still set, sorted."""
        stale = self.stale_bits
        for bit, due in stale.items():
            if not due:
                stale[bit] = now + linger_s
        return sorted(bit for bit, due in stale.items() if due <= now and self.bit(bit) and bit not in self.snat_bits)

    def stale_bits_cleared(self, now: float) -> None:
        """Take note that no bit is set any more that was to be cleared by `now`."""
        self.stale_bits = {bit: due for bit, due in self.stale_bits.items() if due > now}

    # --- what status and metrics show ---

    def states(self) -> Counter[BackendState]:
        """Return how many backends are in which state, without a look at the services."""
        found: Counter[BackendState] = Counter()
        for refs, number in self.refs.numbers().items():
            if (state := state_of(refs)) is not None:
                found[state] += number
        return found

    def pressure(self) -> dict[str, tuple[int, int]]:
        """Return (used, max) of every map the plan fills, without walking one."""
        filled = (spec for spec in self.specs.values() if spec.role is not None)
        return {spec.name: (self.used.get(spec.name, 0), spec.max_entries) for spec in filled}


_REFERENCES = [
    [(1 << _FIELD * state) + (SELECTED if chosen else 0) for chosen in (False, True)] for state in range(_STATES)
]


def reference(state: BackendState, chosen: bool) -> int:
    """Return what one service adds to the refs of a backend. One object a kind: 100,000 refs are mostly equal."""
    return _REFERENCES[state][chosen]


def state_of(refs: int) -> BackendState | None:
    """Return the most alive state that any service gives a backend, None when only pins are left."""
    for state in range(_STATES):
        if refs >> _FIELD * state & _MASK:
            return BackendState(state)
    return None


def is_selectable(refs: int) -> bool:
    """Return whether a new flow may take the backend: active, or in the COUNT group of a service."""
    return bool(refs & _MASK or refs >> _FIELD * _STATES & _MASK)
