"""The content of maps with frontends and backends named by their addresses: no ids, and nothing of how it was written."""

from __future__ import annotations

from msgspec.structs import replace

from lbagent.maps import backend_codec, frontend_codec
from lbagent.maps.layout import PATH, U32, PathFlag
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family

Names = dict[int, L3n4Addr]  # by id


def meaning_of(maps: LBMaps) -> dict[str, object]:
    """Return everything that belongs to services; counters and flows are left out."""
    frontends, backends = _frontends(maps), _backends(maps)
    pairs = [frontend_codec.affinity_match_ids(key) for key, _ in maps.items("lb_affinity_match")]
    tables = maps.maglev("lb4_maglev") | maps.maglev("lb6_maglev")
    with maps.window("lb_filter", 0, maps.specs["lb_filter"].value_size) as window:
        bits = bytes(window)
    return {
        "slots": _slots(maps, backends),
        "backends": sorted(value for _, value in _both(maps, "backend")),
        "paths": {address: _path(maps, ident, address) for ident, address in backends.items()},
        "reverse": {frontends[U32.unpack(key)[0]]: value for key, value in _both(maps, "reverse_nat")},
        "affinity": {(frontends[service], backends[backend]) for service, backend in pairs},
        "maglev": {
            frontends[ident]: [backends.get(each) for each in memoryview(table).cast("I")]
            for ident, table in tables.items()
        },
        "ranges": {(frontends[ident], cidr) for ident, cidr in _ranges(maps)},
        "filter": bits,
        "entries": {name: len(list(maps.items(name))) for name in maps.specs if name.startswith(("lb4_", "lb6_"))},
    }


def _both(maps: LBMaps, what: str) -> list[tuple[bytes, bytes]]:
    return [item for digit in (4, 6) for item in maps.items(f"lb{digit}_{what}")]


def _backends(maps: LBMaps) -> Names:
    return {U32.unpack(key)[0]: backend_codec.backend_of(value)[0] for key, value in _both(maps, "backend")}


def _frontends(maps: LBMaps) -> Names:
    keys = [(frontend_codec.split_service_key(key)[0], value) for key, value in _both(maps, "service")]
    return {frontend_codec.service_id_of(value): frontend_codec.frontend_of(name) for name, value in keys}


def _slots(maps: LBMaps, backends: Names) -> dict[tuple[L3n4Addr, int], object]:
    found: dict[tuple[L3n4Addr, int], object] = {}
    for key, value in _both(maps, "service"):
        name, slot = frontend_codec.split_service_key(key)
        target = backends[frontend_codec.backend_id_of(value)] if slot else frontend_codec.split_target(value)
        found[frontend_codec.frontend_of(name), slot] = target, value[4:6], value[8:]
    return found


def _ranges(maps: LBMaps) -> list[tuple[int, object]]:
    return [frontend_codec.source_range_of(key) for key, _ in _both(maps, "source_range")]


def _path(maps: LBMaps, ident: int, address: L3n4Addr) -> backend_codec.PathRecord:
    """Return a backend's path record, without its generation and whether it was on this node once."""
    family = Family.of(address.address)
    size = PATH[family].size
    with maps.window(f"lb{family}_path", ident * size, size) as window:
        record = backend_codec.path_of(bytes(window))
    return replace(record, gen=0, flags=record.flags & ~PathFlag.WAS_LOCAL)
