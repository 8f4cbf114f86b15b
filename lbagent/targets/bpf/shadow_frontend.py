"""What the Shadow keeps of one frontend: the SVC whose entries the maps hold, or those entries where they are not of one SVC."""

from __future__ import annotations

import struct
from collections import Counter

from msgspec import Struct

from lbagent.maps import frontend_codec
from lbagent.maps.frontend_codec import FrontendEntries
from lbagent.model.family import Family
from lbagent.model.service import SVC, Algorithm


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
            rest.id, unpacked, rest.reverse, rest.affinity, rest.ranges, rest.verdicts, rest.members, rest.table
        )


_SLOT_AND_VALUE = struct.Struct("=H12s")
ShadowFrontend = SVC | PartialFrontend


def map_entries(entry: ShadowFrontend) -> FrontendEntries:
    """Return what the maps hold for an entry; do not change it."""
    return entry.entries if isinstance(entry, PartialFrontend) else frontend_codec.encode(entry)


Limited = tuple[int, int, int]  # slots, affinity matches, source ranges: what frontends can be short of
LIMITED_MAPS = {family: (family.map("service"), "lb_affinity_match", family.map("source_range")) for family in Family}


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
        entry.session_affinity or entry.source_ranges or entry.algorithm is Algorithm.MAGLEV
    ):
        return {
            family.map("service"): frontend_codec.entry_count(entry),
            family.map("reverse_nat"): int(bool(entry.id)),
        }
    entries = map_entries(entry)
    counts = Counter(
        {
            family.map("service"): len(entries.slots),
            family.map("reverse_nat"): int(bool(entries.reverse)),
            "lb_affinity_match": len(entries.affinity),
            family.map("source_range"): len(entries.ranges),
            family.map("maglev"): int(entries.has_table),
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
