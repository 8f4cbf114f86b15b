"""Has another process changed the maps, or does a path differ from that of the State? A slow walk in small slices, beside passes.

What is found is not put right here: where the maps differ, read them again (`restore`) and plan from that Shadow; where paths do,
plan these again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.layout import U32, PathFlag, u32_values
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_map
from lbagent.maps.specs import MapRole
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.model.state import State
from lbagent.render.renderer_types import Difference
from lbagent.targets.bpf.backends import each_backend
from lbagent.targets.bpf.extra_snat_paths import extra_snat_records, path_record
from lbagent.targets.bpf.record_array import RecordArray
from lbagent.targets.bpf.shadow import Shadow, ShadowFrontend, map_entries, strays_of

SLICE = 64  # frontends between two yields: well under a millisecond of map reads each
PIECE = 1 << 18  # bytes of path records compared between two yields
ENTRIES = 1024  # entries of a piece between two yields: about a millisecond
MAX_DIFFERENCES = 20  # found before everything is read again


Found = Iterator[Difference | None]  # None: the event loop may run other work


async def collect(differences: Found, busy: asyncio.Lock) -> list[Difference]:
    """Return the first of the differences, looked for in slices between passes, which hold `busy`. Raises what the walk raises."""
    found: list[Difference] = []
    end = object()
    while len(found) < MAX_DIFFERENCES:
        async with busy:
            difference = next(differences, end)
        if difference is end:
            break
        if isinstance(difference, Difference):
            found.append(difference)
        else:
            await asyncio.sleep(0)
    return found


def drift(maps: LBMaps, shadow: Shadow) -> Found:
    """Yield each difference between the maps and the Shadow, and None wherever the event loop may run other work.

    `service` of a difference is None: the Shadow has frontends alone.

    Plans may be applied between two yields: a difference is reported only when it is still there at a second look. Of Maglev
    tables only their services are read: they are swapped whole or not at all. Raises KernelError.
    """
    for family in Family:
        yield from _services(maps, shadow, family)
        yield from _rows(maps, shadow, family)
        yield from _paths(maps, shadow, family)
    yield from _sets(maps, shadow)
    yield from _filter(maps, shadow)


def path_drift(shadow: Shadow, state: State, paths: Callable[[Backend], PathInfo]) -> Found:
    """Yield each path record that differs from what the State and the network require; None as `drift` does.

    Plans take up what changes; this finds what one of them missed.
    """
    for number, backend in enumerate(each_backend(state)):
        records = shadow.paths[backend.address.family]
        record = records.get(backend.id)
        flags = record[backend_codec.FLAGS_AT[records.record]] if record else 0
        if record and backend_codec.is_live(record):  # else its frontend fails, which is reported elsewhere
            info = paths(backend)
            wanted = path_record(backend, info, record, selectable=bool(flags & PathFlag.SELECTABLE))
            extra_snat = extra_snat_records(shadow, backend.address.family, backend.id, wanted, info)
            if wanted != record or any(extra_snat):
                name = backend.address.with_protocol()
                yield _differs(f"the path of backend {backend.id} ({name}) is not what its node and route require")
        if number % SLICE == 0:
            yield None


def _differs(detail: str, frontend: L3n4Addr | None = None, kind: str = "differs") -> Difference:
    return Difference(kind, detail, None, frontend.with_protocol() if frontend is not None else None)


def _services(maps: LBMaps, shadow: Shadow, family: Family) -> Found:
    name = family_map(family, "service")
    entries = [item for item in shadow.frontends.items() if item[0].family == family]
    sums: dict[bytes, int] = {}
    for keys, values, count in maps.batches(name):
        size, width = len(keys) // count, len(values) // count
        for i in range(count):
            key = keys[i * size : (i + 1) * size]
            part = key[:-6] + key[-4:]
            sums[part] = sums.get(part, 0) ^ hash((key, values[i * width : (i + 1) * width]))
            if i % ENTRIES == 0:
                yield None
    for number, (frontend, entry) in enumerate(entries):
        head, tail = frontend_codec.service_key_parts(frontend)
        unchanged = shadow.frontends.get(frontend) is entry  # else a plan wrote it while we read
        if sums.pop(head + tail, 0) != _sum(frontend, entry) and unchanged:
            if maps.get(name, frontend_codec.service_key(frontend, 0)) is None:
                yield _differs(f"{name} has no slot 0 of it", frontend, "missing")
            else:
                yield _differs(f"what {name} has of it is not what was written", frontend)
        if number % SLICE == 0:
            yield None
    for part in sums:
        stranger = frontend_codec.frontend_of(part)
        if stranger not in shadow.frontends and maps.get(name, frontend_codec.service_key(stranger, 0)) is not None:
            yield _differs(f"it is in {name}, and the agent did not write it", stranger, "stale")


def _sum(frontend: L3n4Addr, entry: ShadowFrontend) -> int:
    rows, total = map_entries(entry), 0
    for slot, value in rows.slots.items():
        total ^= hash((frontend_codec.service_key(frontend, slot), value))
    return total


def _rows(maps: LBMaps, shadow: Shadow, family: Family) -> Found:
    name, rows = family_map(family, "backend"), shadow.backend_rows[family]
    seen = bytearray(rows.count)
    for keys, values, _ in maps.batches(name):
        for i, ident in enumerate(u32_values(keys)):
            if ident < rows.count:
                seen[ident] = 1
            value = values[i * rows.record : (i + 1) * rows.record]
            if value != rows.get(ident):
                yield from _row_again(maps, rows, name, ident)
            if i % ENTRIES == 0:
                yield None
    for ident in rows.used():
        if not seen[ident]:
            yield from _row_again(maps, rows, name, ident)


def _row_again(maps: LBMaps, rows: RecordArray, name: str, ident: int) -> Found:
    if (maps.get(name, U32.pack(ident)) or bytes(rows.record)) != rows.get(ident):
        yield _differs(f"backend {ident} in {name} is not what was written")


def _paths(maps: LBMaps, shadow: Shadow, family: Family) -> Found:
    name, paths = family_map(family, "path"), shadow.paths[family]
    size = paths.record * paths.count
    for start in range(0, size, PIECE):
        length = min(PIECE, size - start)
        with maps.window(name, start, length) as window:
            if window != paths.memory[start : start + length]:
                yield _differs(f"{name} is not what was written")
                return
        yield None


def _sets(maps: LBMaps, shadow: Shadow) -> Found:
    """Compare the maps of which every entry belongs to a frontend: also what is there of none is a difference."""
    wanted: dict[str, set[bytes]] = {
        "lb_affinity_match": set(),
        **{family_map(family, kind): set() for family in Family for kind in ("source_range", "port_range")},
    }
    ids: dict[str, set[int]] = {
        family_map(family, kind): set() for family in Family for kind in ("reverse_nat", "maglev")
    }
    entries = dict(shadow.frontends)
    for number, (frontend, entry) in enumerate(entries.items()):
        rows = map_entries(entry)
        wanted["lb_affinity_match"].update(
            frontend_codec.affinity_match_key(rows.id, ident) + frontend_codec.PRESENT for ident in rows.affinity
        )
        values = dict(rows.verdicts)
        ranges = wanted[family_map(frontend.family, "source_range")]
        ranges.update(key + values.get(key, frontend_codec.PRESENT) for key in rows.ranges)
        if rows.ports:
            value = frontend_codec.port_range_value(frontend)
            wanted[family_map(frontend.family, "port_range")].update(key + value for key in rows.ports)
        name = family_map(frontend.family, "reverse_nat")
        ids[name].update([rows.id] if rows.reverse else [])
        ids[family_map(frontend.family, "maglev")].update([rows.id] if rows.has_table else [])
        for map_name, key in strays_of(entry):
            if map_name in ids:
                ids[map_name].add(int(U32.unpack(key)[0]))
            else:
                wanted[map_name].add(key + frontend_codec.PRESENT)
        current = shadow.frontends.get(frontend) is entry
        if rows.reverse and current and maps.get(name, U32.pack(rows.id)) != rows.reverse:
            yield _differs(f"its row in {name} is not what was written", frontend)
        if number % SLICE == 0:
            yield None
    for family in Family:
        yield from _reverse_rows(maps, family_map(family, "reverse_nat"), ids)
    if len(entries) == len(shadow.frontends) and all(shadow.frontends.get(f) is e for f, e in entries.items()):
        yield from _others(maps, wanted, ids)  # at once: no plan is applied meanwhile


def _reverse_rows(maps: LBMaps, name: str, ids: dict[str, set[int]]) -> Found:
    """Leave in `ids` the services with a row that no frontend has."""
    found: set[int] = set()
    for keys, values, count in maps.batches(name):
        size = len(values) // count
        for i, ident in enumerate(u32_values(keys)) if values.strip(b"\0") else ():
            if values[i * size : (i + 1) * size].strip(b"\0"):
                found.add(ident)
            if i % ENTRIES == 0:
                yield None
        yield None
    ids[name] = found - ids[name]


def _others(maps: LBMaps, wanted: Mapping[str, set[bytes]], ids: Mapping[str, set[int]]) -> Found:
    """Name what is there and was not put there, or the other way round."""
    for name, keys in wanted.items():
        if {key + value for key, value in maps.items(name)} != keys:
            yield _differs(f"{name} is not what was written")
    for name, numbers in ids.items():
        if maps.specs[name].role is MapRole.MAGLEV:
            wrong = maps.maglev_ids(name) ^ numbers
        else:
            wrong = {ident for ident in numbers if (maps.get(name, U32.pack(ident)) or b"").strip(b"\0")}
        for ident in sorted(wrong):
            yield _differs(f"{name}: what is there of service {ident} is not what was written")


def _filter(maps: LBMaps, shadow: Shadow) -> Found:
    with maps.window("lb_filter", 0, len(shadow.filter)) as window:
        same = window == shadow.filter[:]
    if not same:
        yield _differs("lb_filter is not what was written")
