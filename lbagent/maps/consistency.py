"""Check the maps for inconsistencies: for tests after every single write, and for `lbagent verify`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from lbagent.maps import backend_codec, frontend_codec, prefilter
from lbagent.maps.layout import (
    LB_SERVICE,
    PATH,
    SOURCE_RANGE_KEEPS_OUT,
    SOURCE_RANGE_LETS_IN,
    TARGET_ALGORITHM_SHIFT,
    TARGET_RULES,
    U32,
    PathFlag,
)
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_map
from lbagent.model.address import L3n4Addr
from lbagent.model.extra_snat_sources import extra_snat_stride
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import Algorithm


class Inconsistency(NamedTuple):
    """What does not fit together, of one frontend or (None) of none."""

    text: str
    frontend: L3n4Addr | None = None
    is_missing: bool = False  # an entry that packets need is not there

    def __str__(self) -> str:
        """Return a sentence."""
        return f"{self.frontend.with_protocol()}: {self.text}" if self.frontend is not None else self.text


def check(maps: LBMaps, *, settled: bool = False) -> list[str]:
    """Return the `inconsistencies` as sentences."""
    return list(map(str, inconsistencies(maps, settled=settled)))


def inconsistencies(maps: LBMaps, *, settled: bool = False) -> list[Inconsistency]:
    """Return what does not fit together; [] when a new flow finds every service whole.

    Holds at any moment, also between two writes: each slot of a master exists and refers to a backend with a live path of the
    same address; a master has its reverse NAT and, with maglev, a table of such backends; its filter bit is set, and those of
    local backends are. `settled` adds the state after a plan: nothing is left over, affinity matches and backends are exactly
    those in use.
    """
    view = _read(maps)
    found = [*_frontends(view), *_tables(view), *_filter(view)]
    if settled:
        found += [*_leftovers(view), *_affinity(view), *_verdicts(maps)]
    return found


def without_master(maps: LBMaps) -> list[Inconsistency]:
    """Return the frontends that have entries and no slot 0: no packet finds them.

    This is normal for a moment while a frontend is written or removed: a frontend listed twice in a row is wrong.
    """
    view = _read(maps)
    masters = {group.frontend for group in view.frontends if 0 in group.slots}
    known = {group.master[2] for group in view.frontends if 0 in group.slots}
    lost = {group.frontend for group in view.frontends} - masters
    rows = ((frontend_codec.reverse_nat_frontend(row), ident) for (_, ident), row in view.reverse.items())
    lost |= {frontend for frontend, ident in rows if ident not in known}
    text = "slot 0 is missing, so no packet finds it"
    return [Inconsistency(text, frontend, is_missing=True) for frontend in sorted(lost, key=L3n4Addr.with_protocol)]


class _Frontend(Struct):
    frontend: L3n4Addr
    slots: dict[int, bytes]

    @property
    def master(self) -> tuple[int, int, int, int, int]:
        """Return (target, count, id, flags, qcount)."""
        target, count, rev, low, high, qcount = LB_SERVICE.unpack(self.slots[0])
        return int(target), int(count), int.from_bytes(bytes(rev), "big"), int(low) | int(high) << 8, int(qcount)

    def backend(self, slot: int) -> int:
        """Return the backend id of a slot."""
        return int(U32.unpack_from(self.slots[slot])[0])


class _MapContents(Struct):
    frontends: list[_Frontend]
    backends: dict[int, L3n4Addr]
    paths: dict[int, backend_codec.PathRecord]
    reverse: dict[tuple[Family, int], bytes]  # by service id
    tables: dict[int, bytes]
    affinity: set[tuple[int, int]]
    ranges: set[int]
    filter: memoryview
    extra_snat_stride: int


def _read(maps: LBMaps) -> _MapContents:
    groups: dict[bytes, _Frontend] = {}
    for name in ("lb4_service", "lb6_service"):
        for key, value in maps.items(name):
            text, slot = frontend_codec.split_service_key(key)
            groups.setdefault(text, _Frontend(frontend_codec.frontend_of(text), {})).slots[slot] = value
    backends, paths, reverse = {}, {}, {}
    for family in Family:
        for key, value in maps.items(family_map(family, "backend")):
            backends[U32.unpack(key)[0]] = backend_codec.backend_of(value)[0]
        for ident, raw in live_paths(maps, family_map(family, "path"), PATH[family].size):
            paths[ident] = backend_codec.path_of(raw)
        for key, value in maps.items(family_map(family, "reverse_nat")):
            reverse[family, U32.unpack(key)[0]] = value
    ranges = {
        frontend_codec.source_range_of(key)[0]
        for name in ("lb4_source_range", "lb6_source_range")
        for key, _ in maps.items(name)
    }
    with maps.window("lb_filter", 0, maps.specs["lb_filter"].value_size) as window:
        bits = memoryview(bytes(window))
    tables = maps.maglev("lb4_maglev") | maps.maglev("lb6_maglev")
    affinity = {frontend_codec.affinity_match_ids(key) for key, _ in maps.items("lb_affinity_match")}
    stride = extra_snat_stride(maps.sizes.backends)
    return _MapContents(list(groups.values()), backends, paths, reverse, tables, affinity, ranges, bits, stride)


def live_paths(maps: LBMaps, name: str, record: int) -> Iterator[tuple[int, bytes]]:
    """Yield (id, record) of the live path records of a map."""
    with maps.window(name, 0, maps.specs[name].value_size) as window:
        for ident, flags in enumerate(backend_codec.flags_of_each(window, record)):
            if flags & PathFlag.LIVE:
                yield ident, bytes(window[ident * record : (ident + 1) * record])


def _frontends(view: _MapContents) -> Iterator[Inconsistency]:
    for group in view.frontends:
        if 0 not in group.slots:
            continue  # no packet finds it: it is being written or removed
        target, count, ident, flags, qcount = group.master
        for slot in range(1, count + qcount + 1):
            yield from _slot(view, group, slot, count)
        if not ident:
            continue
        reverse = view.reverse.get((group.frontend.family, ident))
        if reverse is None or not frontend_codec.is_reverse_of(reverse, group.frontend):
            yield Inconsistency(f"service {ident} has no reverse NAT row of its own", group.frontend, is_missing=True)
        maglev = target >> TARGET_ALGORITHM_SHIFT & (TARGET_RULES - 1) == Algorithm.MAGLEV.number
        if maglev and count and not ServiceFlags(flags).is_l7lb() and ident not in view.tables:
            yield Inconsistency(f"service {ident} selects by maglev and has no table", group.frontend, is_missing=True)


def _slot(view: _MapContents, group: _Frontend, slot: int, count: int) -> Iterator[Inconsistency]:
    if slot not in group.slots:
        yield Inconsistency(f"slot {slot} of {count} selectable ones is missing", group.frontend, is_missing=True)
        return
    ident = group.backend(slot)
    yield from (Inconsistency(f"slot {slot}: {text}", group.frontend) for text in _backend(view, ident))
    path = view.paths.get(ident)
    if slot <= count and path and not path.flags & PathFlag.SELECTABLE:
        text = f"slot {slot}: a new flow may select backend {ident}, whose path record takes no new flow"
        yield Inconsistency(text, group.frontend)


def _backend(view: _MapContents, ident: int) -> Iterator[str]:
    address, path = view.backends.get(ident), view.paths.get(ident)
    if address is None:
        yield f"backend {ident} does not exist"
    elif path is None:
        yield f"backend {ident} has no live path"
    elif (path.address, path.port) != (address.address, address.port):
        yield f"the path of backend {ident} leads elsewhere"


def _tables(view: _MapContents) -> Iterator[Inconsistency]:
    members: dict[int, set[int]] = {}
    for service, table in view.tables.items():
        if id(table) not in members:
            members[id(table)] = set(memoryview(table).cast("I"))
        for ident in members[id(table)]:
            yield from (Inconsistency(f"maglev table of service {service}: {text}") for text in _backend(view, ident))


def _filter(view: _MapContents) -> Iterator[Inconsistency]:
    for group in view.frontends:
        if 0 in group.slots and not _bit(view, prefilter.vip_bit(group.frontend.address)):
            yield Inconsistency("the prefilter passes its packets untouched", group.frontend)
    for ident, path in view.paths.items():
        bits = backend_codec.local_bits(path.address, path.flags) if ident in view.backends else ()
        if any(not _bit(view, bit) for bit in bits[:1]):
            yield Inconsistency(f"local backend {ident}: the prefilter passes its replies untouched")
        if any(not _bit(view, bit) for bit in bits[1:]):
            yield Inconsistency(
                f"local backend {ident}: the prefilter lacks the bit for packets that clients send to it directly"
            )


def _bit(view: _MapContents, number: int) -> int:
    return view.filter[number >> 3] >> (number & 7) & 1


def _leftovers(view: _MapContents) -> Iterator[Inconsistency]:
    known = set()
    for group in view.frontends:
        if 0 not in group.slots:
            yield Inconsistency("slots without a master", group.frontend)
            continue
        _, count, ident, _, qcount = group.master
        known.add(ident)
        if extra := [slot for slot in group.slots if slot > count + qcount]:
            yield Inconsistency(f"{len(extra)} slots beyond {count + qcount}", group.frontend)
    for ident in view.paths.keys() - view.backends.keys():
        number = view.paths[ident].extra_snat
        if not number:
            yield Inconsistency(f"path of backend {ident}, which does not exist")
        elif not _is_same_backend(view.paths[ident], view.paths.get(ident - number * view.extra_snat_stride)):
            yield Inconsistency(f"path {ident} of extra SNAT address {number}, whose backend does not exist")
    for ident in view.backends.keys() - view.paths.keys():
        yield Inconsistency(f"backend {ident} has no live path")
    for kind, ids in (
        ("reverse NAT row", {ident for _, ident in view.reverse}),
        ("maglev table", set(view.tables)),
        ("source range", view.ranges),
        ("affinity match", {service for service, _ in view.affinity}),
    ):
        yield from (Inconsistency(f"{kind} of service {ident}, which does not exist") for ident in sorted(ids - known))


def _is_same_backend(path: backend_codec.PathRecord, other: backend_codec.PathRecord | None) -> bool:
    ends = (path.address, path.port, path.protocol)
    return other is not None and not other.extra_snat and (other.address, other.port, other.protocol) == ends


def _verdicts(maps: LBMaps) -> Iterator[Inconsistency]:
    for name in ("lb4_source_range", "lb6_source_range"):
        if odd := sum(value[0] in (SOURCE_RANGE_LETS_IN, SOURCE_RANGE_KEEPS_OUT) for _, value in maps.items(name)):
            yield Inconsistency(f"{odd} entries of {name} are left over from an interrupted change of rules")


def _affinity(view: _MapContents) -> Iterator[Inconsistency]:
    matches: dict[int, set[int]] = {}
    for service, backend in view.affinity:
        matches.setdefault(service, set()).add(backend)
    for group in view.frontends:
        if 0 not in group.slots:
            continue
        _, count, ident, flags, _ = group.master
        sticky = flags & ServiceFlags.SESSION_AFFINITY
        wanted = {group.backend(slot) for slot in range(1, count + 1) if slot in group.slots} if sticky else set()
        if wanted != matches.get(ident, set()):
            yield Inconsistency(f"affinity matches of service {ident} are not its backends", group.frontend)
