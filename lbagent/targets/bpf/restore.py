"""Pinned maps -> Shadow, ids and states: what a start knows before it has read a single manifest.

Everything is read once, in batches. Nothing is written; the first plan compares all of it with the desired State.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from msgspec import Struct

from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.frontend_codec import FrontendEntries
from lbagent.maps.layout import U32, is_zero, u32_values
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_map
from lbagent.maps.specs import Sizes
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.extra_snat_sources import MAX_EXTRA_SNAT, extra_snat_stride
from lbagent.model.family import Family
from lbagent.model.ids import BACKEND_ID_LIMIT, SERVICE_ID_LIMIT, IdAllocator, IdAssigner
from lbagent.targets.bpf.shadow import Shadow


class Restored(Struct):
    """What was found. The pairs are for IdAllocator.restore."""

    shadow: Shadow
    service_ids: list[tuple[L3n4Addr, int]]
    backend_ids: list[tuple[L3n4Addr, int]]

    def inside_rows(self) -> frozenset[L3n4Addr]:
        """Return the frontends of scope INTERNAL."""
        return frozenset(frontend for frontend in self.shadow.frontends if frontend.scope is Scope.INTERNAL)


def id_assigner(restored: Restored, backends: int) -> IdAssigner:
    """Return ids that go on where the maps left off; `backends` is the size of the backend map."""
    limit = min(backends, BACKEND_ID_LIMIT)
    ids = IdAssigner(IdAllocator(1, SERVICE_ID_LIMIT), IdAllocator(1, limit))
    give_ids(ids, limit, extra_snat=False)
    ids.service_ids.restore(restored.service_ids)
    ids.backend_ids.restore(restored.backend_ids)
    return ids


def give_ids(ids: IdAssigner, backends: int, *, extra_snat: bool) -> None:
    """Let new backends have any id of the maps, or with `extra_snat` addresses one that leaves room for these."""
    advice = "raise --max-backends" if backends < BACKEND_ID_LIMIT else ""
    if extra_snat:
        share = f"each backend takes {1 + MAX_EXTRA_SNAT} ids with --snat-address"
        advice = f"{share}: {advice}" if advice else share
    ids.backend_ids.give_below(extra_snat_stride(backends) if extra_snat else backends, advice)


def nothing_restored(sizes: Sizes) -> Restored:
    """Return what `restore` finds in maps that are new: to look through their empty buckets takes 0.1 s of CPU."""
    shadow = Shadow(sizes)
    shadow.begin_restore()
    return Restored(shadow, [], [])


def restore(maps: LBMaps) -> Restored:
    """Read the maps. Raises KernelError."""
    found = nothing_restored(maps.sizes)
    shadow = found.shadow
    for family in Family:
        _read_backends(maps, family, found)
        _read_paths(maps, family, shadow)
    with maps.window("lb_filter", 0, maps.specs["lb_filter"].value_size) as window:
        shadow.restore_filter(bytes(window))
    _read_frontends(maps, found)
    return found


def _side_by_side(numbers: Iterable[int]) -> list[int]:
    """Return the numbers as new objects. They outlive all else that is read here, and scattered they would hold its memory."""
    return array("I", numbers).tolist()


def _read_backends(maps: LBMaps, family: Family, found: Restored) -> None:
    name = family_map(family, "backend")
    size = found.shadow.backend_rows[family].record
    addresses: list[L3n4Addr] = []
    idents = array("I")
    for keys, values, count in maps.batches(name):
        each = zip(u32_values(keys), range(0, len(values), size), strict=True)
        rows = {ident: values[at : at + size] for ident, at in each if ident < maps.sizes.backends}
        found.shadow.restore_rows(family, rows)
        addresses += [backend_codec.backend_of(row)[0] for row in rows.values()]
        idents.extend(rows)
        found.shadow.count(name, count)
    found.backend_ids += zip(addresses, _side_by_side(idents), strict=True)


def _read_paths(maps: LBMaps, family: Family, shadow: Shadow) -> None:
    for start, piece in _pieces(maps, family_map(family, "path"), shadow.paths[family].record):
        shadow.restore_paths(family, start, piece)


def _pieces(maps: LBMaps, name: str, record: int) -> Iterator[tuple[int, bytes]]:
    """Yield (first id, records) of the parts of a path map that are not all zero: windows, so that few pages are mapped."""
    size, step = maps.specs[name].value_size, record << 12
    for start in range(0, size, step):
        with maps.window(name, start, min(step, size - start)) as window:
            piece = bytes(window)
        if not is_zero(piece):
            yield start // record, piece


def _read_frontends(maps: LBMaps, found: Restored) -> None:
    groups: dict[L3n4Addr, FrontendEntries] = {}
    slots: dict[L3n4Addr, bytes] = {}
    for family in Family:
        for name, packed in _read_slots(maps, family).items():
            frontend = frontend_codec.frontend_of(name)
            groups[frontend], slots[frontend] = FrontendEntries(_id_in(packed), {}), bytes(packed)
        _read_reverse(maps, family, groups, found.shadow)
    named = {frontend: rows.id for frontend, rows in groups.items() if rows.id}
    found.service_ids += zip(named, _side_by_side(named.values()), strict=True)
    _attach(maps, groups, found.shadow)
    for frontend, rows in groups.items():
        found.shadow.restore_frontend(frontend, rows, slots.get(frontend, b""))
        _count(found.shadow, frontend.family, rows, len(slots.get(frontend, b"")) // _SLOT_BYTES)


def _read_slots(maps: LBMaps, family: Family) -> dict[bytes, bytearray]:
    """Return (slot, value) side by side for each frontend, by what names it in the keys."""
    name = family_map(family, "service")
    size = maps.specs[name].key_size
    out: dict[bytes, bytearray] = {}
    for keys, values, count in maps.batches(name):
        for i in range(count):
            end = (i + 1) * size
            frontend = keys[end - size : end - 6] + keys[end - 4 : end]  # all but the slot
            found = out.get(frontend)
            if found is None:
                found = out[frontend] = bytearray()
            found += keys[end - 6 : end - 4] + values[i * 12 : i * 12 + 12]
    return out


_SLOT_BYTES = 14


def _id_in(packed: bytearray) -> int:
    """Return the id of the master, of any slot where there is none."""
    for at in range(0, len(packed), _SLOT_BYTES):
        if packed[at : at + 2] == b"\0\0":
            return frontend_codec.service_id_of(packed[at + 2 : at + _SLOT_BYTES])
    return frontend_codec.service_id_of(packed[2:_SLOT_BYTES])


def _read_reverse(maps: LBMaps, family: Family, groups: dict[L3n4Addr, FrontendEntries], shadow: Shadow) -> None:
    """Give each reverse NAT row to its frontend: it has its own, so it names the ids of services that have no master yet."""
    name = family_map(family, "reverse_nat")
    ranges: dict[int, list[L3n4Addr]] = {}
    for each, its_rows in groups.items():
        if each.last_port:
            ranges.setdefault(its_rows.id, []).append(each)
    for key, value in maps.items(name):
        ident = U32.unpack(key)[0]
        frontend: L3n4Addr | None = frontend_codec.reverse_nat_frontend(value)
        if frontend is not None and not frontend.port:  # of a range, whose ports are in its slots alone
            frontend = next((one for one in ranges.get(ident, ()) if frontend_codec.is_reverse_of(value, one)), None)
        rows = groups.setdefault(frontend, FrontendEntries(ident, {})) if frontend is not None else None
        if rows is not None and rows.id == ident and not rows.reverse:
            rows.reverse = value
        else:
            shadow.restore_orphan(name, key)


def _attach(maps: LBMaps, groups: dict[L3n4Addr, FrontendEntries], shadow: Shadow) -> None:
    """Give affinity matches, source ranges and tables to the service of their id; what has none is an orphan."""
    owners: dict[tuple[int, Family], FrontendEntries] = {}
    for frontend, rows in groups.items():
        owners.setdefault((rows.id, frontend.family), rows)
    affinity: dict[int, set[int]] = {}
    for key, _ in maps.items("lb_affinity_match"):
        service, backend = frontend_codec.affinity_match_ids(key)
        owner = owners.get((service, Family.IPV4)) or owners.get((service, Family.IPV6))
        if owner is None:
            shadow.restore_orphan("lb_affinity_match", key)
        else:
            affinity.setdefault(id(owner), set()).add(backend)
    for rows in owners.values():
        rows.affinity = frozenset(affinity.get(id(rows), ()))
    for family in Family:
        _attach_ranges(maps, family, owners, shadow)
        _attach_ports(maps, family, groups, shadow)
        for service, table in maps.maglev(family_map(family, "maglev")).items():
            if owner := owners.get((service, family)):
                owner.table = table
            else:
                shadow.restore_orphan(family_map(family, "maglev"), U32.pack(service))


def _attach_ranges(
    maps: LBMaps, family: Family, owners: dict[tuple[int, Family], FrontendEntries], shadow: Shadow
) -> None:
    name = family_map(family, "source_range")
    ranges: dict[int, set[bytes]] = {}
    for key, value in maps.items(name):
        service = frontend_codec.source_range_of(key)[0]
        owner = owners.get((service, family))
        if owner is None:
            shadow.restore_orphan(name, key)
            continue
        ranges.setdefault(service, set()).add(key)
        if value != frontend_codec.PRESENT:
            owner.verdicts = (*owner.verdicts, (key, value))
    for service, keys in ranges.items():
        owners[service, family].ranges = frozenset(keys)


def _attach_ports(maps: LBMaps, family: Family, groups: dict[L3n4Addr, FrontendEntries], shadow: Shadow) -> None:
    """Give the prefixes of ranges of ports to their frontends."""
    name = family_map(family, "port_range")
    for key, value in maps.items(name):
        rows = groups.get(frontend_codec.port_range_frontend(key, value))
        if rows is None:
            shadow.restore_orphan(name, key)
        else:
            rows.ports |= {key}


def _count(shadow: Shadow, family: Family, rows: FrontendEntries, slots: int) -> None:
    for name, number in (
        (family_map(family, "service"), slots),
        (family_map(family, "reverse_nat"), int(bool(rows.reverse))),
        ("lb_affinity_match", len(rows.affinity)),
        (family_map(family, "source_range"), len(rows.ranges)),
        (family_map(family, "maglev"), int(rows.has_table)),
        (family_map(family, "port_range"), len(rows.ports)),
    ):
        shadow.count(name, number)
